"""Two jobs that write to the same output."""

from __future__ import annotations

import threading
from pathlib import Path
from unittest.mock import patch

import pytest

from batchinference.pipeline.commit import heartbeat
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import read_lease
from batchinference.spec import parse
from batchinference.spec.report import JobState
from plugins.messages import Messages
from support.documents.minimal import Document
from support.jobs.held import Gate
from support.jobs.on_ray import Run, job_document, run_job, write_lines
from support.outputs.rows import rows_of

pytestmark = pytest.mark.usefixtures("ray")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(heartbeat, "LEASE_TIMEOUT_SECONDS", 2.0)


def resource(directory: Path, uid: str, **spec: object) -> Document:
    """Return a job as its driver reads it on a cluster; without a uid, as a file on a machine."""
    if not (directory / "in").exists():
        write_lines(directory / "in", {"a.txt": ["one", "hold"]})
    document = job_document("reviews", directory / "in", directory / "out", **spec)
    if uid:
        document["metadata"] |= {"namespace": "team", "uid": uid}
    return document


class HeldJob:
    """A job on the session's Ray, in its own thread."""

    def __init__(self, directory: Path, uid: str = "first", **spec: object) -> None:
        self.gate = Gate(directory, "WaitFor")
        self.document = resource(directory, uid, steps=self.gate.steps, **spec)
        self.runs: list[Run] = []
        self.layout = Layout.of(parse(self.document).spec)
        running = threading.Event()

        def run() -> None:
            def on_publish(report: object) -> None:
                if read_lease(self.layout) is not None:
                    running.set()

            self.runs.append(run_job(self.document, on_publish=on_publish))

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        assert running.wait(30)

    def end(self) -> Run:
        self.gate.open()
        self.thread.join(60)
        return self.runs[0]


@pytest.mark.parametrize("mode", ["error", "overwrite", "append"])
def test_same_file_is_refused_while_its_first_run_is_alive(
    tmp_path: Path, mode: str, messages: Messages
) -> None:
    """This happens if a cron job takes longer than its interval."""
    held = HeldJob(tmp_path, "", write={"mode": mode})
    try:
        with patch.object(heartbeat, "this_process", lambda: "another process"):
            run = run_job(held.document)
        assert run.report.reason == "BadOutput"
        messages.check(run.report.message)
    finally:
        first = held.end()
    assert first.report.state == JobState.SUCCEEDED
    assert sorted(row["text"] for row in rows_of(tmp_path / "out")) == ["hold", "one"]
