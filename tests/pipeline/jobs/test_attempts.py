"""Running the same job again: when it is complete, unfinished, interrupted or blocks other work."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from batchinference.pipeline.execution.stop_signals import StopSignal
from batchinference.spec.report import JobState
from plugins.messages import Messages
from support.jobs.on_ray import job_document, run_in_process, write_lines
from support.outputs.rows import rows_of

pytestmark = pytest.mark.usefixtures("own_code")

TEXTS = [f"text {n}" for n in range(40)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in", {"a.txt": TEXTS[:25], "b.txt": TEXTS[25:]})


def test_complete_output_is_not_changed(source: Path, tmp_path: Path, messages: Messages) -> None:
    job = job_document("first", source, tmp_path / "out")
    first = run_in_process(job)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}

    job["metadata"]["name"] = "second"
    again = run_in_process(job)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before
    assert again.report.state == JobState.SUCCEEDED
    messages.check(again.report.message)
    assert (again.report.name, again.counts) == ("second", first.counts)
    assert again.published[-1] == again.report
    # its times come from this run, because a run must not end before it began
    assert again.report.updated_at >= again.report.started_at >= first.report.updated_at


def test_higher_limit_completes_a_job_with_too_many_bad_rows(source: Path, tmp_path: Path) -> None:
    (source / "c.txt").write_bytes(b"b\xffd\n")
    job = job_document("job", source, tmp_path / "out")
    assert run_in_process(job).report.reason == "TooManyErrors"
    job["spec"]["errors"] = {"maxRows": 1}
    run = run_in_process(job)
    assert (run.report.state, run.report.pass_number) == (JobState.SUCCEEDED, 2)
    assert run.counts == (41, 40, 1, 0)
    assert sorted(row["text"] for row in rows_of(tmp_path / "out")) == sorted(TEXTS)


def test_job_stopped_before_it_begins_changes_nothing(source: Path, tmp_path: Path) -> None:
    run_in_process(job_document("old", source, tmp_path / "out"))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    stop = StopSignal()
    stop.ask(signal.SIGINT)
    job = job_document("new", source, tmp_path / "out", write={"mode": "overwrite"})
    run = run_in_process(job, stop=stop)
    assert (run.report.reason, run.report.message) == ("Interrupted", "stopped by SIGINT")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before
