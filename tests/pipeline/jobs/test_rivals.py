"""Two jobs that write to the same output."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchinference.pipeline import rivals
from batchinference.pipeline.layout import Layout
from batchinference.pipeline.owner import owner_of
from batchinference.pipeline.rivals import beating, identity_of
from batchinference.pipeline.storage import Address
from batchinference.spec import parse
from batchinference.spec.report import JobState
from support.documents.minimal import Document
from support.jobs.held import Gate
from support.jobs.on_ray import Run, job_document, run_job, write_lines
from support.outputs.rows import rows_of

pytestmark = pytest.mark.usefixtures("ray")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "BEAT_SECONDS", 0.2)
    monkeypatch.setattr(rivals, "PATIENCE_SECONDS", 2.0)


def resource(directory: Path, uid: str, **spec: object) -> Document:
    """Return a job as its driver reads it on a cluster."""
    if not (directory / "in").exists():
        write_lines(directory / "in", {"a.txt": ["one", "hold"]})
    document = job_document("reviews", directory / "in", directory / "out", **spec)
    document["metadata"] |= {"namespace": "team", "uid": uid}
    return document


class HeldJob:
    """A job on the session's Ray, in a thread of its own."""

    def __init__(self, directory: Path) -> None:
        self.gate = Gate(directory, "Holding")
        self.document = resource(directory, "first", steps=self.gate.steps)
        self.runs: list[Run] = []
        self.layout = Layout.of(parse(self.document).spec)
        running = threading.Event()

        def run() -> None:
            def tell(report: object) -> None:
                if owner_of(self.layout) is not None:
                    running.set()

            self.runs.append(run_job(self.document, on_publish=tell))

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        assert running.wait(30)

    def end(self) -> Run:
        self.gate.open()
        self.thread.join(60)
        return self.runs[0]


@pytest.fixture
def held(tmp_path: Path) -> Iterator[HeldJob]:
    held = HeldJob(tmp_path)
    yield held
    held.end()


@pytest.mark.parametrize("mode", ["error", "overwrite"])
@pytest.mark.parametrize("work", ["the same", "other"])
def test_later_job_is_refused_while_the_first_lives(
    held: HeldJob, tmp_path: Path, mode: str, work: str
) -> None:
    steps = held.document["spec"]["steps"] if work == "the same" else []
    later = resource(tmp_path, "later", steps=steps, write={"mode": mode})
    run = run_job(later)
    assert run.report.reason == "BadOutput"
    if (mode, work) != ("error", "other"):  # which is refused in any case
        assert "is being written by team/reviews (first)" in str(run.report.message)
    first = held.end()
    assert first.report.state == JobState.SUCCEEDED
    assert sorted(row["text"] for row in rows_of(tmp_path / "out")) == ["hold", "one"]


def test_job_with_another_uid_resumes_a_dead_one(tmp_path: Path) -> None:
    """The resource was deleted and created again."""
    run_job(resource(tmp_path, "first"))
    Layout.of(parse(resource(tmp_path, "first")).spec).success.delete()
    run = run_job(resource(tmp_path, "second"))
    assert (run.report.state, run.report.attempt) == (JobState.SUCCEEDED, 2)


def test_attempts_of_one_resource_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_job(resource(tmp_path, "first"))
    Layout.of(parse(resource(tmp_path, "first")).spec).success.delete()
    monkeypatch.setattr(rivals.time, "sleep", pytest.fail)
    assert run_job(resource(tmp_path, "first")).report.state == JobState.SUCCEEDED


def test_job_without_a_uid_is_identified_by_name_and_machine(tmp_path: Path) -> None:
    document = resource(tmp_path, "x")
    del document["metadata"]["uid"]
    assert identity_of(parse(document)).startswith("reviews on ")


def test_heartbeat_survives_a_storage_error(tmp_path: Path) -> None:
    beats: list[Path] = []

    def place() -> Address:
        beats.append(tmp_path / str(len(beats)))
        if len(beats) == 1:
            raise OSError("away")
        return Address(str(beats[-1]))

    with beating(place):
        deadline = threading.Event()
        while len(beats) < 3:
            deadline.wait(0.05)
    assert not beats[0].exists()
    assert beats[1].exists()
