"""What the documentation shows of jobs for a cluster is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchinference.cli.main import app
from support.documentation import ROOT, blocks, jobs, name_of
from support.documents import Document

PAGES = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))
LINK = re.compile(r"\]\((?!https?://)([^)#]+)")


@pytest.mark.parametrize("job", jobs("README.md") + jobs("docs/cluster.md"), ids=name_of)
def test_a_job_can_be_applied(job: Document, tmp_path: Path) -> None:
    page = "README.md" if job in jobs("README.md") else "docs/cluster.md"
    (block,) = (text for text in blocks(page, "yaml") if name_of(job) in text)
    (tmp_path / "job.yaml").write_text(block)
    rendered = CliRunner().invoke(app, ["render", str(tmp_path / "job.yaml")])
    assert rendered.exit_code == 0, rendered.output
    assert "kind: RayJob" in rendered.output


def test_the_plan_that_is_shown_is_the_plan(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(blocks("docs/cluster.md", "yaml")[0])
    shown = CliRunner().invoke(app, ["plan", str(tmp_path / "job.yaml")]).output
    assert blocks("docs/cluster.md", "text")[0].strip() in shown


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *PAGES])
def test_links_lead_somewhere(page: str) -> None:
    here = (ROOT / page).parent
    broken = [
        link for link in LINK.findall((ROOT / page).read_text()) if not (here / link).exists()
    ]
    assert broken == []
