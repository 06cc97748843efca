"""The lease of an output, without Ray: whether its run is alive, and what the next run keeps."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from batchinference.pipeline.commit import heartbeat
from batchinference.pipeline.commit.heartbeat import ensure_not_running, keep_heartbeat
from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.lease import Lease, identity_of, this_process
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.execution.prepared_pass import PassEnd, PreparedPass
from batchinference.pipeline.storage.location import Location
from batchinference.spec import parse
from support.documents.minimal import document
from support.jobs.command import wait_until
from support.jobs.on_ray import write_lines
from support.outputs.builders import begin_pass, layout_of


@pytest.mark.parametrize(
    ("process", "job", "waits"),
    [
        ("MACHINE-1-0", "reviews on laptop", False),
        ("elsewhere-1-0", "reviews on laptop", True),
        ("", "reviews on laptop", True),
        ("elsewhere-1-0", "team/reviews (uid)", False),
    ],
)
def test_dead_run_of_the_same_job_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: str, job: str, waits: bool
) -> None:
    """At once if it has certainly ended; otherwise only after its heartbeat is missing."""
    layout, clock = replace(layout_of(tmp_path / "out"), lease_timeout=3.0), itertools.count()
    waited: list[float] = []
    time = SimpleNamespace(sleep=waited.append, monotonic=lambda: float(next(clock)))
    monkeypatch.setattr(heartbeat, "time", time)
    machine = this_process().partition("-")[0]
    dead = Lease.new(layout, 1, job=job)
    ensure_not_running(layout, replace(dead, process=process.replace("MACHINE", machine)), job)
    assert waited == ([0.3, 0.3] if waits else [])


def test_job_without_a_uid_is_identified_by_name_and_machine() -> None:
    assert identity_of(parse(document("reviews"))).startswith("reviews on ")


def test_next_pass_is_refused_if_another_run_has_begun(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in", {"a.txt": ["x"]})
    job_pass = begin_pass(layout_of(tmp_path / "out"), source)
    start = Snapshot(job_pass.layout.key, "")
    run = PreparedPass(Mock(), None, Mock(), job_pass, start)
    JobPass.begin(job_pass.layout, job_pass.lease, start)
    with pytest.raises(BadOutput, match="another run"):
        run.begin_next_pass(PassEnd(start, {}, []))


def test_next_pass_continues_the_series_of_its_lease(tmp_path: Path) -> None:
    """A table accepts one commit per series. With another series, it would get all rows twice."""
    layout = layout_of(tmp_path / "out")
    before = Lease.new(layout, 1, series="f" * 32)
    before.write_if_unchanged(layout, None)
    after = JobPass.begin(layout, before, Snapshot(layout.key, "")).lease
    assert (after.pass_number, after.series) == (2, "f" * 32)


def test_heartbeat_survives_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = replace(layout_of(tmp_path), heartbeat_seconds=0.001)
    beats: list[bytes] = []

    def write(_: Location, content: bytes) -> None:
        beats.append(content)
        if len(beats) < 3:
            raise OSError

    monkeypatch.setattr(Location, "write", write)
    with keep_heartbeat(layout, Lease.new(layout, 1)):
        wait_until(lambda: len(beats) > 3, "a heartbeat")
