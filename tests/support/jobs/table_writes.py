"""Runs jobs that write a table, without Ray. Tests commit rows as write tasks do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from batchinference.pipeline.arrow import concat
from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.claim import Claim
from batchinference.pipeline.commit.decision import (
    FinishTableCommit,
    Request,
    Start,
    decide,
    load_state,
)
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.execution.block_codec import encode
from batchinference.pipeline.execution.chunk_commits import CommitRules
from batchinference.pipeline.execution.dataset import CommitSink, WriteRows
from batchinference.pipeline.execution.row_files import committer_for
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.step_runner import ErrorHandling
from batchinference.pipeline.input.listing import snapshot_input
from batchinference.pipeline.output.file_layout import FileLayout
from batchinference.pipeline.output.tables import Table, table_for
from batchinference.pipeline.report.stored import finished_report
from batchinference.pipeline.row_batch import RowBatch
from batchinference.spec import BatchInferenceSpec
from support.documents.parsed import spec_of
from support.outputs.batches import end, good
from support.outputs.builders import close_and_clean, succeeded_report

Write = dict[str, Any]


@dataclass
class TableJob:
    """One attempt of a job that writes a table and reads a text file."""

    spec: BatchInferenceSpec
    attempt: Attempt
    sink: CommitSink
    written: int = 0

    def put(self, table: pa.Table, task: int | None = None, first: int | None = None) -> None:
        """Write good rows as a write task does. `task` and `first` repeat an earlier task."""
        start = self.written if first is None else first
        self._write(good(0, start, table), task)
        self.written = max(self.written, start + table.num_rows)

    def begin(self, table: pa.Table) -> None:
        self.sink.on_write_start(encode(good(0, 0, table)).schema)

    def check(self) -> list[ManifestEntry]:
        self._write(end(0, self.written), 10_000)
        snapshot = close_and_clean(self.attempt)
        assert snapshot.missing_rows(1, None) == {}
        return snapshot.entries

    def commit(self, entries: list[ManifestEntry] | None = None) -> list[ManifestEntry]:
        """Make the rows visible, and return their entries. Pass `entries` if `check` was called."""
        checked = self.check() if entries is None else entries
        layout = self.attempt.layout
        end = Snapshot(layout.key, "", checked, {0: self.written})
        report = succeeded_report(layout.output.uri)
        self.attempt.commit(self.spec.write, table_for(self.spec.write), end, report)  # type: ignore[arg-type]
        return checked

    def complete(self) -> None:
        layout = self.attempt.layout
        end = Snapshot(layout.key, "", self.commit(), {0: self.written})
        self.attempt.complete(end, succeeded_report(layout.output.uri))

    def _write(self, batch: RowBatch, task: int | None) -> None:
        number = self.written if task is None else task
        self.sink.write([encode(batch)], SimpleNamespace(task_idx=number))


def open_job(source: Path, write: Write) -> TableJob | None:
    """Begin the next attempt of a job and return it, or None if there is nothing to do."""
    source.mkdir(exist_ok=True)
    (source / "a.txt").write_text("one\n")
    spec = spec_of(read={"format": "text", "paths": [str(source)]}, write=write)
    layout = Layout.of(spec)
    request = Request(spec.write)
    state = load_state(layout, request, table_for(spec.write))
    action = decide(state, request)
    if isinstance(action, FinishTableCommit) and state.lease is not None:
        end = Snapshot.read(layout.end, layout.key)
        Attempt(layout, state.lease).complete(end, finished_report(layout, end))
        return None
    if not isinstance(action, Start):
        return None
    overwrite = spec.write.mode == "overwrite"
    lease = Claim(layout, state.lease, overwrite, series=action.series).put()
    layout.input.write(snapshot_input([str(source)], []).serialized())
    attempt = Attempt.begin(layout, lease, Snapshot(layout.key, ""))
    errors = ErrorHandling(True, layout.input)
    table: Any = table_for(spec.write)  # type: ignore[arg-type]
    columns = FileLayout.of(spec.write).columns
    committer = committer_for(spec.write, attempt, table, errors)
    rows = WriteRows(committer, 1, CommitRules(1), table, columns)
    return TableJob(spec, attempt, CommitSink(rows, Segment.of([], errors)))


def run_job(source: Path, write: Write, tables: Iterable[pa.Table]) -> bool:
    """Run a whole job with one task per table. Return False if there was nothing to do."""
    job = open_job(source, write)
    if job is None:
        return False
    tables = list(tables)
    if tables:
        job.begin(tables[0])
    for table in tables:
        job.put(table)
    job.complete()
    return True


def table_of(write: Write) -> Table:
    """Return the table that a job writes."""
    return table_for(spec_of(write=write).write)  # type: ignore[arg-type]


def in_order(found: Iterable[dict[str, Any]], by: str = "id") -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: row[by])


def together(tables: Iterable[pa.Table]) -> list[dict[str, Any]]:
    """Return the rows of several tables."""
    return list(concat(list(tables)).to_pylist())


def without_x(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row unchanged; raise ValueError if its text contains an x."""
    if "x" in row["text"]:
        raise ValueError("an x")
    return row
