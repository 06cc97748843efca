"""Jobs that write a table, without Ray: rows are committed by hand as write tasks commit them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from batchinference.pipeline import rows
from batchinference.pipeline.attempt import Attempt
from batchinference.pipeline.blocks import concat
from batchinference.pipeline.inputs import freeze_input
from batchinference.pipeline.layout import Layout
from batchinference.pipeline.manifest import Manifest
from batchinference.pipeline.output import begin
from batchinference.pipeline.sink import CommitSink
from batchinference.pipeline.table_sink import sink_for
from batchinference.pipeline.tables import Table, table_for
from batchinference.spec import BatchInferenceSpec
from batchinference.spec.report import JobState, Report
from support.specs import spec_of

Write = dict[str, Any]


@dataclass
class TableJob:
    """One attempt at a table, whose input is a file of text."""

    spec: BatchInferenceSpec
    attempt: Attempt
    sink: CommitSink
    written: int = 0

    def put(self, table: pa.Table, task: int | None = None, first: int | None = None) -> None:
        """What a write task does with good rows; with `task` and `first`, one that ran before."""
        start = self.written if first is None else first
        self._write(rows.with_ids(table, 0, start), task)
        self.written = max(self.written, start + table.num_rows)

    def begin(self, table: pa.Table) -> None:
        self.sink.on_write_start(rows.with_ids(table, 0, 0).schema)

    def check(self) -> list[Manifest]:
        self._write(rows.end_of_file(0, self.written), 10_000)
        return self.attempt.check_and_clean(files=1)

    def commit(self, manifests: list[Manifest] | None = None) -> None:
        """All that makes the rows visible; `manifests` when they are checked already."""
        checked = self.check() if manifests is None else manifests
        self.attempt.commit(self.spec.write, checked)  # type: ignore[arg-type]

    def complete(self) -> None:
        self.commit()
        self.attempt.complete(report())

    def _write(self, table: pa.Table, task: int | None) -> None:
        number = self.written if task is None else task
        self.sink.write([table], SimpleNamespace(task_idx=number))


def open_job(source: Path, write: Write) -> TableJob | None:
    """The next attempt of a job; None when there is nothing to do."""
    source.mkdir(exist_ok=True)
    (source / "a.txt").write_text("one\n")
    spec = spec_of(read={"format": "text", "paths": [str(source)]}, write=write)
    layout = Layout.of(spec)
    attempt = begin(spec.write, layout)
    if attempt is None:
        return None
    layout.input.write(freeze_input([str(source)], []).serialized())
    return TableJob(spec, attempt, sink_for(spec.write, attempt, 1))


def run_job(source: Path, write: Write, tables: Iterable[pa.Table]) -> bool:
    """A whole job, a task a table. False when there was nothing to do."""
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
    """The table that a job writes."""
    return table_for(spec_of(write=write).write)  # type: ignore[arg-type]


def in_order(found: Iterable[dict[str, Any]], by: str = "id") -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: row[by])


def together(tables: Iterable[pa.Table]) -> list[dict[str, Any]]:
    """The rows of several tables."""
    return list(concat(list(tables)).to_pylist())


def report() -> Report:
    now = "2026-01-01T00:00:00Z"
    return Report(
        name="job",
        state=JobState.SUCCEEDED,
        output="out",
        startedAt=now,
        updatedAt=now,
        version="1",
        seconds={},
    )
