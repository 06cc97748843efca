"""The datasink of a job, and how that of a table differs: it is told of the first rows."""

from __future__ import annotations

import pyarrow as pa

from batchinference.pipeline import row_ids
from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.execution.sink import Commit, CommitSink
from batchinference.pipeline.output.file_layout import FileLayout
from batchinference.pipeline.output.tables import Table, table_for
from batchinference.pipeline.output.writers import writer_for
from batchinference.spec.write import Write, WriteTable


def sink_for(write: Write, attempt: Attempt, rows_per_file: int) -> CommitSink:
    """The datasink of a target. `rows_per_file` is the least a task waits for, unless files are to
    have more."""
    cut = FileLayout.of(write)
    rows_per_task = max(rows_per_file, cut.rows_per_file or 0)
    if isinstance(write, WriteTable):
        table = table_for(write)
        return TableSink(Commit(attempt, table, cut), rows_per_task, table)
    return CommitSink(Commit(attempt, writer_for(write), cut), rows_per_task)


class TableSink(CommitSink):
    """Lets a table prepare itself on the driver, before it travels into the write tasks."""

    def __init__(self, commit: Commit, rows_per_file: int, table: Table) -> None:
        super().__init__(commit, rows_per_file)
        self._table = table

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Ray calls it when the first rows are ready for a task, with their columns."""
        known = schema if isinstance(schema, pa.Schema) else pa.schema([])
        names = [name for name in known.names if name not in row_ids.OWN_COLUMNS]
        if chosen := self._commit.cut.columns:
            names = [name for name in chosen if name in names]
        self._table.begin(pa.schema([known.field(name) for name in names]))
