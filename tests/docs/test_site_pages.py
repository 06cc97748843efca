"""The pages about installation, migration and troubleshooting match the product."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from batchinference.spec.causes import Cause
from batchinference.spec.status import Phase
from support.documents.pages import ROOT, blocks, jobs, name_of
from support.jobs.without_ray import run_without_ray
from support.outputs.rows import rows_of

OPERATOR = ROOT / "operator/src/batchinference_operator"
REFERENCE, RECORDING = "reference.md", "transcript.md"
MAX_WORDS = 50_000
"""Words of all other pages of the site. If a page becomes longer, another one becomes shorter."""


def test_pages_of_the_site_are_short_enough_to_be_read() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = set(re.findall(r"[:-] ([\w.-]+\.md)$", navigation, re.MULTILINE))
    pages -= {REFERENCE, RECORDING}
    words = {page: len((ROOT / "docs" / page).read_text().split()) for page in pages}
    assert sum(words.values()) <= MAX_WORDS, words


def test_reference_is_the_last_result_of_a_search() -> None:
    matches = re.findall(
        r"^  boost: ([\d.]+)$", (ROOT / "docs" / REFERENCE).read_text(), re.MULTILINE
    )
    assert [float(boost) < 1 for boost in matches] == [True]


def test_install_page_has_each_extra_and_its_packages() -> None:
    project = tomllib.loads((ROOT / "jobs/pyproject.toml").read_text())["project"]
    extras = {
        extra: {re.split(r"[\[><=]", package)[0] for package in packages}
        for extra, packages in project["optional-dependencies"].items()
    }
    page = (ROOT / "docs/install.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| (`[^|]+) \|$", page, re.MULTILINE)
    assert {extra: set(re.findall(r"`([^`]+)`", packages)) for extra, packages in rows} == extras


def test_script_and_its_job_write_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (script,) = blocks("docs/migration.md", "py")
    (tmp_path / "scorer.py").write_text(script[script.index("class") : script.index("ds =")])
    (tmp_path / "reviews").mkdir()
    lines = [json.dumps({"length": length}) for length in range(10)]
    (tmp_path / "reviews/a.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    (job,) = (job for job in jobs("docs/migration.md") if name_of(job) == "scores")
    monkeypatch.chdir(tmp_path)
    report = run_without_ray(job)
    assert report.state == "succeeded", report.message
    rows = rows_of(tmp_path / "out/scores")
    assert sorted((row["length"], row["score"]) for row in rows) == [(7, 3.5), (8, 4.0), (9, 4.5)]


def test_catalogue_has_each_reason_of_the_operator() -> None:
    sources = [path.read_text() for path in OPERATOR.rglob("*.py")]
    reasons = {match for text in sources for match in re.findall(r'Summary\(\s*"(\w+)"', text)}
    known = {*Phase, *Cause, "Scheduled"}
    assert len(reasons) > 8
    assert reasons - known == set()
