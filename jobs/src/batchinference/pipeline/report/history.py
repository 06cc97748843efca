"""Records each run in the history of its output, in a file of its own.

Only this run writes the file, so a run that has lost its lease damages nothing. Nothing depends on
the history: a job does not fail if it cannot be stored."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow.fs as pafs

from batchinference.pipeline.commit.lease import is_dead, this_process
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location
from batchinference.spec.history import DIED, RunRecord, figures_of
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.progress import Counts
from batchinference.spec.report import Report

if TYPE_CHECKING:
    from batchinference.pipeline.execution.attempt_run import AttemptRun

KEPT_RUNS, SHOWN_RUNS = 100, 20
"""Maximum number of runs that are kept per output, and that a report or a page shows."""
UPDATE_SECONDS = 60.0
"""Minimum time between two writes of the record of a run that has not ended."""
SILENT_SECONDS = 150.0
"""Age of the record of a run after which that run counts as dead."""
MAX_BYTES, THREADS = 1 << 16, 16
_CLUSTER_VARIABLE = "RAY_CLUSTER_NAME"
"""KubeRay sets it in the pods of a RayCluster."""


@dataclass
class RunHistory:
    """The record of a run. It exists from the time at which the run has begun to write."""

    spec: BatchInferenceSpec
    _kinds: dict[str, None] = field(default_factory=dict, init=False)
    _before: Counts = field(default_factory=Counts, init=False)
    _file: Location | None = field(default=None, init=False)
    _directory: Location | None = field(default=None, init=False)
    _job: str = field(default="", init=False)
    _next: float = field(default=0.0, init=False)
    _stored: bytes = field(default=b"", init=False)

    def begin(self, run: AttemptRun, report: Report) -> None:
        """Record that the run begins to write to an output that has the rows of `run.start`."""
        lease = run.attempt.lease
        if self._file is None:
            self._directory = run.attempt.layout.history
            began = f"{datetime.now(UTC):%Y-%m-%dT%H%M%S.%fZ}"
            self._file = self._directory / f"{began}-{lease.run[:8]}.json"
        self._job, self._next = lease.job, 0.0
        self._kinds[run.kind] = None
        self._before += run.start.counts
        self.store(report)

    def store(self, report: Report) -> None:
        """Store the record of the run: at most once a minute, and at its end."""
        now = time.monotonic()
        if self._file is None or (now < self._next and not report.state.ended):
            return
        self._next = now + UPDATE_SECONDS
        content = self._record(report).model_dump_json(by_alias=True, exclude_none=True).encode()
        if content != self._stored:
            with suppress(OSError, BadOutput):
                self._file.write(content)
                self._stored = content

    def _record(self, report: Report) -> RunRecord:
        return RunRecord(
            **figures_of(report, self._before),
            kinds=list(self._kinds),
            parameters={one.name: one.value or "" for one in self.spec.parameters},
            job=self._job,
            rayClusterName=os.environ.get(_CLUSTER_VARIABLE),
            process=this_process(),
        )

    def shown(self) -> list[RunRecord]:
        """Return the last runs, and delete the records of runs before the last KEPT_RUNS."""
        if self._directory is None:
            return []
        with suppress(OSError, BadOutput):
            files = _files_in(self._directory)
            for old in files[:-KEPT_RUNS]:
                self._directory.at(old.path).delete()
            return _read(self._directory, files[-SHOWN_RUNS:])
        return []


def read_history(directory: Location, most: int = KEPT_RUNS) -> list[RunRecord]:
    """Return the last runs, oldest first. Records that are damaged are left out."""
    return _read(directory, _files_in(directory)[-most:])


def _files_in(directory: Location) -> list[pafs.FileInfo]:
    """Return the records in a directory in the order of their names, which begin with a time."""
    found = (info for info in directory.files() if info.extension == "json")
    return sorted(found, key=lambda info: info.path)


def _read(directory: Location, files: list[pafs.FileInfo]) -> list[RunRecord]:
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda info: _record_in(directory, info), files))
    return [record for record in found if record is not None]


def _record_in(directory: Location, info: pafs.FileInfo) -> RunRecord | None:
    """Return a record. The state of a run whose process has ended without a report is DIED."""
    try:
        record = RunRecord.parse(directory.at(info.path).read(MAX_BYTES))
    except (FileNotFoundError, ValueError):
        return None
    age = time.time() - info.mtime.timestamp()
    lost = not record.ended and (is_dead(record.process) or age > SILENT_SECONDS)
    return record.model_copy(update={"state": DIED}) if lost else record
