"""The number of storage requests of a small job in each phase, by kind.

Each lease, marker and directory is read once to decide what the job does, and the input is listed
once. What is read again is named here. A write of a lease (`update`) reads and compares it. Each
change of a file with a fixed name by the holder of the lease (`write_if`, `delete_if`) reads the
lease, too, and in a store the version of a file that it writes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchinference.pipeline import pass_start
from batchinference.pipeline.commit import output_paths
from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.storage.location import Location
from batchinference.plan import plan
from batchinference.spec.report import JobState
from support.calls import counted
from support.documents.minimal import Document
from support.jobs.without_ray import invoke_without_ray, run_without_ray, small_job, write_input

KINDS = {
    "info": "info",
    "read": "read",
    "write": "write",
    "write_if": "write",
    "update": "update",
    "content": "list",
    "delete": "delete",
    "delete_if": "delete",
    "delete_directory": "clear",
    "delete_directory_if": "clear",
    "move": "move",
}
PHASES = {"check_job": "check", "plan_pass": "look", "_open_input": "open", "begin_pass": "begin"}
Requests = dict[str, dict[str, int]]


class Storage:
    """Counts the calls that make requests, without those for heartbeats."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._found: dict[str, Counter[str]] = {}
        self._prepared = Counter[tuple[str, str]]()
        self._phase, self._nested = "look", False
        for name, kind in KINDS.items():
            monkeypatch.setattr(Location, name, self._counted(kind, getattr(Location, name)))
        for name, phase in PHASES.items():
            timed = self._in_phase(phase, getattr(pass_start, name))
            monkeypatch.setattr(pass_start, name, timed)
        monkeypatch.setattr(JobPass, "stop_commits", self._in_phase("end", JobPass.stop_commits))

    def _counted(self, kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(location: Location, *given: Any, **named: Any) -> Any:
            if self._nested or location.path.endswith("heartbeat"):
                return real(location, *given, **named)
            self._found.setdefault(self._phase, Counter())[kind] += 1
            self._prepared[kind, location.path] += self._phase not in ("begin", "run", "end")
            self._nested = True
            try:
                return real(location, *given, **named)
            finally:
                self._nested = False

        return call

    def _in_phase(self, phase: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self._phase = phase
            try:
                return real(*given, **named)
            finally:
                self._phase = {"begin": "run", "end": "end"}.get(phase, "look")

        return call

    def of(self, job: Document, again: int = 0) -> Requests:
        """Run a job, and return its requests until its first task, and those of its end. Before it
        begins a pass, it repeats a request for `again` files."""
        self._found, self._phase, self._prepared = {}, "look", Counter()
        report = run_without_ray(job)
        assert report.state == JobState.SUCCEEDED, report.message
        repeated = [request for request, count in self._prepared.items() if count > 1]
        assert len(repeated) == again, repeated
        return {phase: dict(result) for phase, result in self._found.items() if phase != "run"}


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Storage:
    return Storage(monkeypatch)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_input(tmp_path / "in")


OPEN = {"info": 1, "list": 1}
"""The directory of the input."""
CLAIM = {"update": 3, "delete": 2, "clear": 2, "write": 4, "list": 3}
"""The claim, the claim after all rows are deleted, and the pass. Listed are the state files to
delete, and the data files and the error files, of which some may be orphans."""


def test_requests_of_a_new_output(storage: Storage, source: Path, tmp_path: Path) -> None:
    result = storage.of(small_job(source, tmp_path / "out"))
    look = {"read": 3, "list": 2}  # three leases; the additions, and files of others
    assert until_first_task(result) == {"look": look, "open": OPEN, "begin": CLAIM}
    # the manifests, twice the data and the errors, because files were rewritten, and the history
    assert result["end"]["list"] == 6


def test_requests_of_a_complete_output(storage: Storage, source: Path, tmp_path: Path) -> None:
    job = small_job(source, tmp_path / "out")
    storage.of(job)
    # two leases, the marker, the code, the input, the report
    assert storage.of(job) == {"look": {"read": 6, "list": 1}, "open": OPEN}


def test_requests_of_a_resumed_output(storage: Storage, source: Path, tmp_path: Path) -> None:
    job = small_job(source, tmp_path / "out")
    storage.of(job)
    (tmp_path / "out/_SUCCESS").unlink()
    result = storage.of(job)
    assert until_first_task(result) == {
        # two leases, the marker, the code, the snapshot; the additions, the data, the errors
        "look": {"read": 5, "info": 1, "list": 3},
        "open": OPEN | {"read": 1},
        # the code and the spec, which are written if they have changed
        "begin": {"read": 2, "write": 1, "update": 1, "delete": 1},
    }
    assert result["end"]["list"] == 4  # the manifests, the data, the errors, the history


def test_requests_of_an_append(storage: Storage, source: Path, tmp_path: Path) -> None:
    job = small_job(source, tmp_path / "out", mode="append")
    look = {"read": 3, "list": 1}  # the leases of the append, of the whole and of a replacement
    task = until_first_task(storage.of(job))
    assert task == {"look": look, "open": OPEN, "begin": CLAIM}
    (source / "z.jsonl").write_text(json.dumps({"n": 9, "values": [3]}) + "\n")
    task = until_first_task(storage.of(job))
    assert task == {
        "look": {"read": 4, "list": 1},  # and the lease of the addition
        "open": {"info": 2, "list": 1, "read": 2},  # and the marker, and the processed files
        "begin": CLAIM,
    }


def test_requests_of_a_replacement(storage: Storage, source: Path, tmp_path: Path) -> None:
    storage.of(small_job(source, tmp_path / "out"))
    result = storage.of(small_job(source, tmp_path / "out", mode="overwrite"), again=2)
    assert until_first_task(result) == {
        # the leases are read again after what is left of an earlier replacement is deleted
        "look": {"read": 7, "list": 1, "clear": 1},
        "open": OPEN,
        "begin": CLAIM | {"list": 4},
    }


def until_first_task(requests: Requests) -> Requests:
    return {phase: requests for phase, requests in requests.items() if phase != "end"}


def test_work_is_hashed_and_plan_is_computed_once(source: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(small_job(source, tmp_path / "out", mode="overwrite")))
    with counted(output_paths, "work_key") as hashed, counted(plan, "stages_of") as planned:
        assert not invoke_without_ray("run", str(job)).exit_code
    assert (hashed.call_count, planned.call_count) == (1, 1)
