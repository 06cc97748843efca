"""What the documentation shows of jobs for a cluster is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchinference.cli.main import app
from batchinference.spec.crd import PRINTER_COLUMNS
from batchinference.spec.job import MUTABLE
from support.documentation import ROOT, blocks, jobs, name_of
from support.documents import Document

PAGES = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))
LINK = re.compile(r"\]\((?!https?://)([^)#]+)")


WITH_JOBS = ["README.md", "docs/cluster.md", "docs/sharing.md"]
JOBS = [(page, job) for page in WITH_JOBS for job in jobs(page)]


@pytest.mark.parametrize(("page", "job"), JOBS, ids=[name_of(job) for _, job in JOBS])
def test_a_job_can_be_applied(page: str, job: Document, tmp_path: Path) -> None:
    (block,) = (text for text in blocks(page, "yaml") if name_of(job) in text)
    (tmp_path / "job.yaml").write_text(block)
    rendered = CliRunner().invoke(app, ["render", str(tmp_path / "job.yaml")])
    assert rendered.exit_code == 0, rendered.output
    assert "kind: RayJob" in rendered.output


def test_the_plan_that_is_shown_is_the_plan(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(blocks("docs/cluster.md", "yaml")[0])
    shown = CliRunner().invoke(app, ["plan", str(tmp_path / "job.yaml")]).output
    assert blocks("docs/cluster.md", "text")[0].strip() in shown


@pytest.mark.parametrize("page", ["docs/cluster.md", "docs/gitops.md"])
def test_what_may_change_of_a_job_is_told(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    assert f"{', '.join(f'`{name}`' for name in MUTABLE[:-1])} " in text


def test_the_columns_that_are_shown_are_those_of_kubectl() -> None:
    (shown,) = (text for text in blocks("docs/cluster.md", "console") if "PHASE" in text)
    usual = [name.upper() for name, _, _, wide in PRINTER_COLUMNS if not wide]
    assert shown.splitlines()[1].split() == ["NAME", *usual]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *PAGES])
def test_links_lead_somewhere(page: str) -> None:
    here = (ROOT / page).parent
    broken = [
        link for link in LINK.findall((ROOT / page).read_text()) if not (here / link).exists()
    ]
    assert broken == []
