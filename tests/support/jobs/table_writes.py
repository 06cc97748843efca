"""Runs jobs that write a table, without Ray. Tests commit rows as write tasks do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from batchinference.pipeline.arrow import concat
from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.output_state import Request, load_state
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.commit.start_or_resume import Action, decide
from batchinference.pipeline.commit.start_over import Claim
from batchinference.pipeline.commit.table_commit import TableFiles
from batchinference.pipeline.execution.block_codec import encode
from batchinference.pipeline.execution.chunk_commits import CommitRules
from batchinference.pipeline.execution.dataset import CommitDatasink
from batchinference.pipeline.execution.executor import Executor
from batchinference.pipeline.execution.row_files import committer_for
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.step_runner import ErrorHandling
from batchinference.pipeline.input.listing import snapshot_input
from batchinference.pipeline.input.planning import Sizing
from batchinference.pipeline.output.tables import Table
from batchinference.pipeline.output.tables.kinds import table_for
from batchinference.pipeline.report.stored_report import finished_report
from batchinference.pipeline.row_batch import RowBatch
from batchinference.plan import Plan
from batchinference.spec import BatchInferenceSpec
from support.documents.parsed import spec_of
from support.outputs.batches import end, good
from support.outputs.builders import close_and_clean, succeeded_report
from support.outputs.rows import Row
from support.outputs.tables import sql_rows, table_rows, write_fields

Write = dict[str, Any]


@dataclass
class TableJob:
    """One pass of a job that writes a table and reads a text file."""

    spec: BatchInferenceSpec
    job_pass: JobPass
    sink: CommitDatasink
    table: Table
    written: int = 0

    def put(self, table: pa.Table, task: int | None = None, first: int | None = None) -> None:
        """Write good rows as a write task does. `task` and `first` repeat an earlier task."""
        start = self.written if first is None else first
        self._write(good(0, start, table), task)
        self.written = max(self.written, start + table.num_rows)

    def begin(self, table: pa.Table) -> None:
        """Open the table for rows whose columns are known before they are computed."""
        self.table.open(table.schema)

    def check(self) -> list[ManifestEntry]:
        self._write(end(0, self.written), 10_000)
        snapshot = close_and_clean(self.job_pass)
        assert snapshot.missing_rows(1, None) == {}
        return snapshot.entries

    def place_files(self, entries: list[ManifestEntry]) -> tuple[Snapshot, TableFiles]:
        """Give the committed files one schema, and put their rows where the table has its files.
        Return the snapshot of the files, and the files of the table."""
        start = Snapshot(self.job_pass.layout.key, "")
        prepared: Any = SimpleNamespace(
            job_pass=self.job_pass,
            table=self.table,
            start=start,
            input=SimpleNamespace(columns=lambda: None, repeatable=True),
            sizing=Sizing(1, 1, 1),
        )
        executor = Executor(self.spec, Plan((), ()), prepared)
        end = executor.rewrite_files(replace(start, entries=entries, ends={0: self.written}))
        return end, executor.place_files(self.table, end)

    def commit(self, entries: list[ManifestEntry] | None = None) -> list[ManifestEntry]:
        """Make the rows visible, and return their entries. Pass `entries` if `check` was called."""
        end, placed = self.place_files(self.check() if entries is None else entries)
        report = succeeded_report(self.job_pass.layout.output.uri)
        self.job_pass.commit_table(self.spec.write, self.table, placed, end, report)  # type: ignore[arg-type]
        return end.entries

    def complete(self) -> None:
        layout = self.job_pass.layout
        end = Snapshot(layout.key, "", self.commit(), {0: self.written})
        self.job_pass.mark_complete(end, succeeded_report(layout.output.uri))

    def _write(self, batch: RowBatch, task: int | None) -> None:
        number = self.written if task is None else task
        self.sink.write([encode(batch)], SimpleNamespace(task_idx=number))


def open_job(source: Path, write: Write) -> TableJob | None:
    """Begin the next pass of a job and return it, or None if there is nothing to do. An
    unfinished job starts over."""
    source.mkdir(exist_ok=True)
    (source / "a.txt").write_text("one\n")
    spec = spec_of(read={"format": "text", "paths": [str(source)]}, write=write)
    layout = Layout.of(spec)
    request = Request(spec.write)
    table = table_for(spec.write)  # type: ignore[arg-type]
    state = load_state(layout, request, table)
    action = decide(state, request)
    if action is Action.FINISH_TABLE_COMMIT and state.lease is not None:
        end = Snapshot.read(layout.final_snapshot, layout.key)
        JobPass(layout, state.lease).mark_complete(end, finished_report(layout, end))
        return None
    if not action.begins_pass:
        return None
    table.open(pa.schema([]))
    overwrite = spec.write.mode == "overwrite"
    series = state.lease.series if state.lease and action is Action.START_IN_SERIES else ""
    lease = Claim(layout, state.lease, overwrite, series=series).claim_and_clear()
    layout.input.write(snapshot_input([str(source)], []).serialized())
    job_pass = JobPass.begin(layout, lease, Snapshot(layout.key, ""))
    errors = ErrorHandling(True, layout.input)
    committer = committer_for(spec.write, job_pass, table, errors)
    sink = CommitDatasink(committer, CommitRules(1), Segment.of([], errors))
    return TableJob(spec, job_pass, sink, table)


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


@dataclass(frozen=True)
class TableTarget:
    """A table in its own directory or database, and the jobs that write it. `kind` is a format or a
    database, and `fields` are fields of `write`."""

    kind: str
    folder: Path
    fields: Write = field(default_factory=dict)

    @property
    def format(self) -> str:
        return "sql" if self.kind in ("sqlite", "postgresql") else self.kind

    def write(self, **fields: Any) -> Write:
        return {**write_fields(self.format, self.folder), **self.fields, **fields}

    def run(self, *tables: pa.Table, name: str = "in", **fields: Any) -> bool:
        """Run a job. Calls with different names run different jobs."""
        return run_job(self.folder / name, self.write(**fields), tables)

    def open(self, *tables: pa.Table, name: str = "in", **fields: Any) -> TableJob:
        """Open a job and write rows, without a commit."""
        job = open_job(self.folder / name, self.write(**fields))
        assert job is not None
        if tables:
            job.begin(tables[0])
        for table in tables:
            job.put(table)
        return job

    def table(self, **fields: Any) -> Table:
        return table_of(self.write(**fields))

    def rows(self, by: str = "id") -> list[Row]:
        """Return the rows as the library of the format reads them."""
        is_sql = self.format == "sql"
        return in_order(
            sql_rows(self.engine()) if is_sql else table_rows(self.kind, self.folder), by
        )

    def engine(self) -> sa.Engine:
        return sa.create_engine(self.write()["url"])

    def execute(self, *statements: str) -> None:
        with self.engine().begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement))


def in_order(result: Iterable[dict[str, Any]], by: str = "id") -> list[dict[str, Any]]:
    return sorted(result, key=lambda row: row[by])


def together(tables: Iterable[pa.Table]) -> list[dict[str, Any]]:
    """Return the rows of several tables."""
    return list(concat(list(tables)).to_pylist())
