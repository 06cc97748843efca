"""The history of an output: which runs wrote to it, and what each of them did."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from batchinference.api.output_status import history_of
from batchinference.pipeline.report.history import RunHistory, read_history
from batchinference.pipeline.storage.location import Location
from batchinference.spec import parse
from batchinference.spec.history import KEPT_RUNS, RunRecord, table_of
from batchinference.spec.parameters import ParameterValues
from batchinference.spec.report import JobState
from support.documents.minimal import Document
from support.jobs.crash_points import local_site
from support.jobs.without_ray import (
    COUNTS,
    invoke_without_ray,
    run_without_ray,
    small_job,
    write_input,
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_input(tmp_path / "in")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


def with_limit(job: Document, rows: int) -> Document:
    return {**job, "spec": {**job["spec"], "errors": {"maxRows": rows}}}


def figures(runs: list[RunRecord]) -> list[tuple[str, str, int, int]]:
    return [(",".join(run.kinds), run.state, run.counts.read, run.counts.failed) for run in runs]


def test_each_run_has_the_rows_that_it_wrote_itself(source: Path, output: Path) -> None:
    job = small_job(source, output, mode="append")
    run_without_ray(job)
    (source / "z.jsonl").write_text(json.dumps({"n": 9, "values": [-3, 4]}) + "\n")
    run_without_ray(job)
    run_without_ray(job)  # nothing to do: it writes nothing
    runs = history_of(str(output))
    assert figures(runs) == [("append", "succeeded", 8, 2), ("append", "succeeded", 1, 1)]
    assert runs[0].counts.written == COUNTS["written"]


def test_failed_run_has_its_cause_and_its_rows(source: Path, output: Path) -> None:
    job = small_job(source, output)
    run_without_ray(with_limit(job, 1))
    run_without_ray(job)
    failed, resumed = history_of(str(output))
    assert (failed.state, failed.reason) == ("failed", "TooManyErrors")
    assert failed.message
    assert (resumed.kinds, resumed.state) == (["resume"], "succeeded")
    assert failed.counts + resumed.counts == resumed.counts.model_copy(update=COUNTS)


def test_retry_of_errors_has_the_failed_rows(source: Path, output: Path) -> None:
    job = small_job(source, output)
    run_without_ray(job)
    job["spec"]["errors"]["retryFailedRows"] = True
    run_without_ray(job)
    assert figures(history_of(str(output)))[1] == ("retry", "succeeded", 2, 2)


def test_history_survives_an_overwrite(source: Path, output: Path) -> None:
    run_without_ray(small_job(source, output))
    run_without_ray(small_job(source, output, mode="overwrite"))
    kinds = [run.kinds for run in history_of(str(output))]
    assert kinds == [["start"], ["overwrite"]]


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("day", "monday", "monday"),
        ("source", "https://user:s3cret@host/x", "https://***@host/x"),
        ("options", "mode=a,password=s3cret", "mode=a,password=***"),
        ("db_password", "s3cret", "***"),
    ],
)
def test_history_has_the_parameters_of_a_run_without_credentials(
    source: Path, output: Path, name: str, value: str, stored: str
) -> None:
    job = small_job(source, output)
    job["spec"]["parameters"] = [{"name": name}]
    run_without_ray(parse(job, ParameterValues({name: value})))
    assert [run.parameters for run in history_of(str(output))] == [{name: stored}]


def test_killed_run_is_shown_as_died(tmp_path: Path) -> None:
    site = local_site(tmp_path)
    steps = site.run(site.job("complete")).steps
    site.run(site.job("out"), steps.index("write _batchinference/attempts/*/closed"))
    assert [run.state for run in history_of(str(tmp_path / "out"))] == ["died"]
    run_without_ray(site.job("out"))
    states = [run.state for run in history_of(str(tmp_path / "out"))]
    assert states == ["died", "succeeded"]


def test_run_of_another_machine_has_died_if_it_is_silent(source: Path, output: Path) -> None:
    run_without_ray(small_job(source, output))
    (file,) = (output / "_batchinference/history").iterdir()
    stored = json.loads(file.read_text()) | {"state": "running", "process": "other-1-1"}
    file.write_text(json.dumps(stored))
    assert [run.state for run in history_of(str(output))] == ["running"]
    os.utime(file, (0, 0))
    assert [run.state for run in history_of(str(output))] == ["died"]


def test_late_run_changes_only_its_own_record(source: Path, output: Path) -> None:
    late: list[Any] = []

    class Late(RunHistory):
        def store(self, report: Any) -> None:
            late.append((self, report))
            super().store(report)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("batchinference.pipeline.job.RunHistory", Late)
        run_without_ray(small_job(source, output))
    run_without_ray(small_job(source, output, mode="overwrite"))
    before = history_of(str(output))
    record, report = late[-1]
    failed = report.model_copy(update={"state": JobState.FAILED, "reason": "BadOutput"})
    RunHistory.store(record, failed)
    first, second = history_of(str(output))
    assert (first.state, first.reason) == ("failed", "BadOutput")
    assert second == before[1]


@pytest.mark.parametrize("dies", [False, True])
def test_only_the_last_runs_are_kept(
    source: Path, output: Path, monkeypatch: pytest.MonkeyPatch, *, dies: bool
) -> None:
    if dies:
        monkeypatch.setattr(RunHistory, "last_runs", lambda _: [])  # called at the end of a run
    run_without_ray(small_job(source, output, mode="append"))
    (file,) = (output / "_batchinference/history").iterdir()
    for number in range(KEPT_RUNS):
        (file.parent / f"0-{number:04}.json").write_bytes(file.read_bytes())
    (source / "z.jsonl").write_text('{"n": 9, "values": [1]}\n')
    run_without_ray(small_job(source, output, mode="append"))
    first, *_, before, _ = kept = sorted(each.name for each in file.parent.iterdir())
    assert (first, before, len(kept)) == ("0-0002.json", file.name, KEPT_RUNS)
    assert [run.counts.read for run in history_of(str(output))[-2:]] == [8, 1]


def test_job_succeeds_without_a_history(
    source: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Location.write

    def refuse(location: Location, content: bytes) -> None:
        if "/history/" in location.path:
            raise PermissionError(location.path)
        real(location, content)

    monkeypatch.setattr(Location, "write", refuse)
    assert run_without_ray(small_job(source, output)).state == JobState.SUCCEEDED
    assert history_of(str(output)) == []


def test_damaged_and_hostile_records_do_no_harm(source: Path, output: Path) -> None:
    run_without_ray(small_job(source, output))
    (file,) = (output / "_batchinference/history").iterdir()
    stored = json.loads(file.read_text())
    file.with_name("a.json").write_text("{")
    file.with_name("b.json").write_text(json.dumps(stored | {"counts": {"read": -1}}))
    file.with_name("b2.json").write_text(json.dumps(stored | {"kinds": ["a"] * 10_000}))
    file.with_name("b3.json").write_text(json.dumps(stored | {"kinds": ["a" * 10_000]}))
    file.with_name("c.json").write_text("[" * 10**6)
    hostile = stored | {"version": "\x1b[2J", "future": 1}
    file.with_name("z.json").write_text(json.dumps(hostile))
    runs = read_history(Location(str(file.parent)), 10)
    assert [run.version for run in runs] == [stored["version"], "[2J"]


def test_table_leaves_out_columns_without_values(source: Path, output: Path) -> None:
    run_without_ray(small_job(source, output))
    headings, _ = table_of(history_of(str(output)))
    assert "parameters" not in headings
    assert table_of([]) == []


def test_status_and_report_show_the_history(source: Path, output: Path) -> None:
    run_without_ray(with_limit(small_job(source, output), 1))
    run_without_ray(small_job(source, output))
    shown = invoke_without_ray("status", str(output)).stdout
    page = (output / "_batchinference/report.html").read_text()
    for text in (shown, page):
        assert "failed: TooManyErrors" in text
        assert "resume" in text
    status = json.loads(invoke_without_ray("status", str(output), "--format", "json").stdout)
    assert [run["state"] for run in status[0]["history"]] == ["failed", "succeeded"]
    assert status[0]["history"][0]["rowsPerSecond"] > 0
