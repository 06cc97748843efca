"""The jobs, commands, command outputs, columns and link targets that pages show exist."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from batchinference.pipeline.verify.findings import Kind, Result
from batchinference.spec.job import MUTABLE, MUTABLE_LIMITS, MUTABLE_OF_STEP
from batchinference.spec.schedule import time_values
from generators.crds import PRINTER_COLUMNS
from support.documents.pages import ROOT, blocks, jobs, name_of
from support.jobs.on_ray import job_document, write_lines
from support.outputs.builders import every_tenth, make_output
from support.outputs.verify_command import invoke
from support.program import run_program

PAGES = ["README.md", "README.zh-CN.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md"]
PAGES += sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))
WITH_JOBS = ["README.md", "docs/cluster.md", "docs/devices.md", "docs/sharing.md"]
LINK = re.compile(r"\]\((?!https?://)([^)#]+)")


def test_jobs_for_a_cluster_are_rendered(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    refused = {}
    for page in WITH_JOBS:
        for job in jobs(page):
            (block,) = (text for text in blocks(page, "yaml") if name_of(job) in text)
            file.write_text(block)
            rendered = run_program("plan", str(file), "-o", "yaml")
            if rendered.exit_code or "kind: RayJob" not in rendered.output:
                refused[name_of(job)] = rendered.output
    assert refused == {}


def test_plan_of_the_page_is_printed(tmp_path: Path) -> None:
    (job,) = (text for text in blocks("docs/cluster.md", "yaml") if "name: from-minio" in text)
    (tmp_path / "job.yaml").write_text(job)
    shown = run_program("plan", str(tmp_path / "job.yaml")).output
    assert blocks("docs/cluster.md", "text")[0].strip() in shown


def test_mutable_fields_are_listed() -> None:
    page = (ROOT / "docs/cluster.md").read_text()
    table = page.partition("takes effect |\n")[2].partition("\n\n")[0]
    errors = [f"errors.{name}" for name in MUTABLE_LIMITS]
    listed = set(re.findall(r"`([\w.]+)`", table)) - {"cluster.limits.deviceHours"}
    assert listed == {*MUTABLE, *errors, *MUTABLE_OF_STEP}


def test_schedule_of_the_page_is_valid_and_its_parameters_are_listed(tmp_path: Path) -> None:
    block, *_ = (text for text in blocks("docs/schedules.md", "yaml") if "schedule:" in text)
    (tmp_path / "schedule.yaml").write_text(block)
    checked = run_program("validate", "--fields-only", str(tmp_path / "schedule.yaml"))
    assert "daily-events is valid" in checked.output
    table = (ROOT / "docs/schedules.md").read_text().partition("| --- | --- | --- |")[2]
    rows = [line.split("|")[1:3] for line in table.partition("\n\n")[0].splitlines() if line]
    shown = [re.findall(r"`([^`]+)`", "".join(column)) for column in zip(*rows, strict=True)]
    moment = datetime(2026, 3, 1, 1, 30, tzinfo=UTC)
    assert dict(zip(*shown, strict=True)) == time_values(moment, ZoneInfo("Europe/Berlin"))


def test_columns_equal_those_of_kubectl() -> None:
    (shown,) = (text for text in blocks("docs/cluster.md", "console") if "PHASE" in text)
    usual = [name.upper() for name, _, _, wide in PRINTER_COLUMNS if not wide]
    assert shown.splitlines()[1].split() == ["NAME", *usual]


def test_links_refer_to_existing_files() -> None:
    broken = [
        (page, link)
        for page in PAGES
        for link in LINK.findall((ROOT / page).read_text())
        if not ((ROOT / page).parent / link).exists()
    ]
    assert broken == []


def test_verify_prints_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {f"{n}.txt": [f"text {m}" for m in range(50)] for n in range(4)}
    source = write_lines(tmp_path / "in", lines)
    make_output(job_document("page", source, tmp_path / "out", errors={"maxRows": 20}), every_tenth)
    monkeypatch.chdir(tmp_path)
    commands = blocks("docs/verify.md", "bash")[0].splitlines()
    local = [line for line in commands if "s3://" not in line]
    assert len(local) == 2
    for line in local:
        assert invoke(*line.partition("#")[0].split()[2:]).exit_code == 0
    (shown,) = blocks("docs/verify.md", "text")
    assert without_bytes(invoke("out").stdout) == without_bytes(shown)


def without_bytes(text: str) -> str:
    return re.sub(r"\d+ B", "", text)


def test_verify_page_has_every_result_and_kind() -> None:
    page = (ROOT / "docs/verify.md").read_text()
    named = set(re.findall(r"`(\w+)`", page))
    assert named >= {kind.value for kind in (*Kind, *Result)}


def test_tests_that_pages_name_exist() -> None:
    tests = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)\(", tests))
    named = {page: set(re.findall(r"`(test_\w+)`", (ROOT / page).read_text())) for page in PAGES}
    assert sum(map(len, named.values())) > 15
    assert {page: missing for page, names in named.items() if (missing := names - defined)} == {}


def test_each_step_with_gpus_names_a_test_or_that_there_is_none() -> None:
    page = (ROOT / "docs/contributing/testing.md").read_text()
    rows = re.findall(r"^\| \d+\. .*\|(.*)\|$", page, re.MULTILINE)
    assert len(rows) == 12
    for row in rows:
        tests = re.findall(r"\[`(test_\w+)`\]\(\.\./\.\./(.*?)\)", row)
        assert tests or "not tested on hardware" in row
        for name, file in tests:
            assert f"def {name}(" in (ROOT / file).read_text()
