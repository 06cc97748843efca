"""Running the same job again: when it is complete, unfinished, interrupted or blocks other work."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.execution import stop_signals
from batchinference.pipeline.execution.stop_signals import StopSignal
from batchinference.pipeline.output.writers.json import JsonWriter
from batchinference.spec.report import JobState, Report
from plugins.messages import Messages
from support.documents.minimal import Document
from support.jobs.on_ray import (
    Run,
    job_document,
    run_in_process,
    run_job,
    write_lines,
)
from support.outputs.batches import good
from support.outputs.builders import committing, last_attempt
from support.outputs.rows import rows_of

pytestmark = pytest.mark.usefixtures("own_code")

TEXTS = [f"text {n}" for n in range(40)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in", {"a.txt": TEXTS[:25], "b.txt": TEXTS[25:]})


def texts(output: Path) -> list[str]:
    return sorted(row["text"] for row in rows_of(output))


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


class TestTooManyBadRows:
    """A job that has failed, and the ways to complete it nevertheless."""

    @pytest.fixture
    def job(self, source: Path, tmp_path: Path) -> Document:
        (source / "c.txt").write_bytes(b"b\xffd\n")
        job = job_document("job", source, tmp_path / "out")
        assert run_in_process(job).report.reason == "TooManyErrors"
        return job

    def test_higher_limit_completes_the_job(self, job: Document, tmp_path: Path) -> None:
        job["spec"]["errors"] = {"maxRows": 1}
        run = run_in_process(job)
        assert (run.report.state, run.report.attempt) == (JobState.SUCCEEDED, 2)
        assert run.counts == (41, 40, 1, 0)
        assert texts(tmp_path / "out") == sorted(TEXTS)

    def test_repaired_file_changes_the_input(
        self, job: Document, source: Path, tmp_path: Path, messages: Messages
    ) -> None:
        (source / "c.txt").write_text("good now\n")
        refused = run_in_process(job)
        assert refused.report.reason == "BadInput"
        messages.check(refused.report.message)
        job["spec"]["resume"] = False
        job["metadata"]["uid"] = "uid-of-a-new-job"
        run = run_in_process(job)
        assert (run.report.state, run.counts) == (JobState.SUCCEEDED, (41, 41, 0, 0))
        assert texts(tmp_path / "out") == sorted([*TEXTS, "good now"])


def test_job_stopped_before_it_begins_changes_nothing(source: Path, tmp_path: Path) -> None:
    run_in_process(job_document("old", source, tmp_path / "out"))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    stop = StopSignal()
    stop.ask(signal.SIGINT)
    job = job_document("new", source, tmp_path / "out", write={"mode": "overwrite"})
    run = run_in_process(job, stop=stop)
    assert (run.report.reason, run.report.message) == ("Interrupted", "stopped by SIGINT")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


@pytest.mark.usefixtures("ray")
class TestInterruptedRun:
    """A job whose first attempt is stopped while one of its tasks is still processing rows."""

    @pytest.fixture
    def gate(self, tmp_path: Path) -> Path:
        """Return the file that releases the blocked rows once it exists."""
        return tmp_path / "gate"

    @pytest.fixture
    def job(self, source: Path, tmp_path: Path, gate: Path) -> Document:
        write_lines(source, {"c.txt": ["hold"]})
        step = {"python": {"callable": "own_code:wait_for", "callArgs": {"file": str(gate)}}}
        return job_document("held", source, tmp_path / "out", steps=[{"name": "own", **step}])

    def stop_once_running(self, job: Document, monkeypatch: pytest.MonkeyPatch) -> Run:
        monkeypatch.setattr(stop_signals, "DRAIN_SECONDS", 0.5)
        stop = StopSignal()

        def on_publish(report: Report) -> None:
            if report.state == JobState.RUNNING:
                stop.ask(signal.SIGTERM)

        return run_job(job, on_publish=on_publish, stop=stop)

    def test_late_task_adds_nothing_to_the_next_attempt(
        self,
        job: Document,
        gate: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        messages: Messages,
    ) -> None:
        stopped = self.stop_once_running(job, monkeypatch).report
        assert not [thread for thread in threading.enumerate() if thread.name == "dataset"]
        gate.touch()
        assert (stopped.state, stopped.reason) == (JobState.FAILED, "Interrupted")
        kept = (tmp_path / "out" / "_batchinference" / "report.json").read_bytes()
        assert Report.parse(kept) == stopped
        assert not (tmp_path / "out" / "_SUCCESS").exists()
        late = committing(last_attempt(job), JsonWriter("none"))
        batch = good(0, 0, pa.table({"text": [TEXTS[0]]}))

        def on_publish(report: Report) -> None:
            if report.state == JobState.RUNNING:
                with messages.raises(BadOutput):
                    late.put(batch, task=77)
                # a file that the late task had written before the check
                name = late.attempt.layout.part_name(1, 78, "deadbeef") + ".jsonl"
                (late.attempt.layout.output / name).write(b'{"text": "late"}')

        run = run_job(job, on_publish=on_publish)
        assert (run.report.state, run.report.attempt) == (JobState.SUCCEEDED, 2)
        assert run.counts == (41, 41, 0, 0)
        assert texts(tmp_path / "out") == sorted([*TEXTS, "hold"])
