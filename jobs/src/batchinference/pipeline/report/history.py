"""Records each run in the history of its output, in one file per run.

Only the run itself writes its file. A run that has lost its lease thus damages no other record. A
job does not fail if its record cannot be written."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import pyarrow.fs as pafs

from batchinference.credentials import MASK, is_credential, without_credentials
from batchinference.pipeline.commit.lease import is_dead, this_process
from batchinference.pipeline.storage.location import Location
from batchinference.spec.history import DIED, KEPT_RUNS, SHOWN_RUNS, RunRecord, figures_of
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.progress import Counts
from batchinference.spec.report import Report

if TYPE_CHECKING:
    from batchinference.pipeline.execution.prepared_pass import PreparedPass

UPDATE_SECONDS = 60.0
"""Minimum time between two writes of the record of a running job."""
SILENT_SECONDS = 150.0
"""A run without an end is dead if its record was last written longer ago than this."""
MAX_BYTES, THREADS = 1 << 20, 16
_CLUSTER_VARIABLE = "RAY_CLUSTER_NAME"
"""The environment variable that KubeRay sets in the pods of a RayCluster."""


@dataclass
class RunHistory:
    """The record of a run, which is stored from the first call of `begin` on."""

    spec: BatchInferenceSpec
    _kinds: dict[str, None] = field(default_factory=dict, init=False)
    _before: Counts = field(default_factory=Counts, init=False)
    _file: Location | None = field(default=None, init=False)
    _directory: Location | None = field(default=None, init=False)
    _job: str = field(default="", init=False)
    _next_write: float = field(default=0.0, init=False)
    _stored: bytes = field(default=b"", init=False)

    def begin(self, run: PreparedPass, report: Report) -> None:
        """Record that the run begins to write to an output, and the rows that the output has."""
        lease = run.job_pass.lease
        if self._file is None:
            self._directory = run.job_pass.layout.history
            began = f"{datetime.now(UTC):%Y-%m-%dT%H%M%S.%fZ}"
            self._file = self._directory / f"{began}-{lease.run[:8]}.json"
            _delete_old(self._directory)
        self._job, self._next_write = lease.job, 0.0
        self._kinds[run.kind] = None
        self._before += run.start.counts
        self.store(report)

    def store(self, report: Report) -> None:
        """Store the record if the run has ended, or UPDATE_SECONDS after the last time."""
        now = time.monotonic()
        if self._file is None or (now < self._next_write and not report.state.ended):
            return
        self._next_write = now + UPDATE_SECONDS
        with suppress(Exception):
            record = RunRecord(
                **figures_of(report, self._before),
                kinds=list(self._kinds),
                parameters=self._parameters(),
                job=self._job,
                rayClusterName=os.environ.get(_CLUSTER_VARIABLE),
                process=this_process(),
            )
            content = record.model_dump_json(by_alias=True, exclude_none=True).encode()
            if content != self._stored:
                self._file.write(content)
                self._stored = content

    def last_runs(self) -> list[RunRecord]:
        """Return the last runs for the HTML report; empty if they cannot be read."""
        if self._directory is None:
            return []
        with suppress(Exception):
            return read_history(self._directory, SHOWN_RUNS)
        return []

    def _parameters(self) -> dict[str, str]:
        """Return the values of the parameters, with credentials masked."""
        return {
            item.name: MASK if is_credential(item.name) else without_credentials(item.value)
            for item in self.spec.parameters
            if item.value
        }


def _delete_old(directory: Location) -> None:
    """Delete the oldest records. With the next new record, KEPT_RUNS remain."""
    with suppress(Exception):
        for old in _files_in(directory)[: 1 - KEPT_RUNS]:
            directory.at(old.path).delete()


def read_history(directory: Location, limit: int) -> list[RunRecord]:
    """Return the last `limit` runs, oldest first. Damaged records are left out."""
    files = _files_in(directory)[-limit:]
    with ThreadPoolExecutor(THREADS) as pool:
        records = list(pool.map(partial(_record_in, directory), files))
    return [record for record in records if record is not None]


def _files_in(directory: Location) -> list[pafs.FileInfo]:
    """Return the files of records, oldest first. The name of a record begins with its time."""
    files = (info for info in directory.files() if info.extension == "json")
    return sorted(files, key=lambda info: info.path)


def _record_in(directory: Location, info: pafs.FileInfo) -> RunRecord | None:
    """Return a record; None if it is damaged. Its state becomes DIED if the run has died."""
    try:
        record = RunRecord.parse(directory.at(info.path).read(MAX_BYTES))
    except (FileNotFoundError, ValueError):
        return None
    age = time.time() - info.mtime.timestamp()
    died = not record.ended and (is_dead(record.process) or age > SILENT_SECONDS)
    return record.model_copy(update={"state": DIED}) if died else record
