"""Updates rows of Iceberg tables. Writes the new rows. Each data file with old versions of these
rows is replaced by a file without the old versions.

pyiceberg's `upsert` loses the columns that the job does not write. It also compares rows one by one
in Python, and holds all rows of the job in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, LessThanOrEqual, Reference
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import DataScan, FileScanTask, Transaction

from batchinference.pipeline.output.tables.keys import Keys
from batchinference.pipeline.storage import iceberg_nulls  # noqa: F401 - corrects pyiceberg
from batchinference.pipeline.storage.arrow_files import refuse_pickles, table_in
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.type_widening import cast_to


@dataclass(frozen=True)
class RewrittenFile:
    """The replacement of a data file in which the job updates rows."""

    others: list[DataFile]
    """The new files with the rows that are not updated."""
    keys: np.ndarray
    """The numbers of the keys of the updated rows."""
    kept: pa.Table
    """The columns of the updated rows that the job does not write."""


@dataclass
class IcebergMerge:
    """Merges the rows of a job into a table. `files` are Parquet files with these rows, which have
    the columns `names`. After a conflict with another commit, the next try reuses the replacements
    of data files that the other commit has not changed."""

    keys: Keys
    files: Sequence[Location]
    names: Sequence[str]
    _updates: dict[Any, RewrittenFile | None] = field(default_factory=dict)
    _inserted: dict[Any, list[DataFile]] = field(default_factory=dict)

    def apply(self, transaction: Transaction, marks: dict[str, str]) -> None:
        """Add the merge to a transaction as one snapshot. The table must have the columns of the
        rows. Raises BadOutput if several rows of the table have the same key."""
        metadata = transaction.table_metadata
        schema = metadata.schema().as_arrow()
        version = str(metadata.schema()) + str(metadata.spec())
        tasks = {}
        for task in self._tasks(transaction):
            deletes = sorted(each.file_path for each in task.delete_files)
            tasks[version, task.file.file_path, *deletes] = task
        for name in tasks.keys() - self._updates.keys():
            self._updates[name] = self._rewrite(transaction, tasks[name])
        updates = {name: update for name in tasks if (update := self._updates[name]) is not None}
        keys = [update.keys for update in updates.values()]
        self.keys.check_unique_in_table(np.concatenate([np.zeros(0, np.int64), *keys]))
        inserted = (version, *updates)
        if inserted not in self._inserted:
            self._inserted[inserted] = list(self._insert(transaction, schema, [*updates.values()]))
        with transaction.update_snapshot(snapshot_properties=marks).overwrite() as overwrite:
            for name in updates:
                overwrite.delete_data_file(tasks[name].file)
            others = (file for update in updates.values() for file in update.others)
            for file in (*others, *self._inserted[inserted]):
                overwrite.append_data_file(file)

    def _tasks(self, transaction: Transaction) -> Iterator[FileScanTask]:
        """Yield the data files that may contain keys of the job, with their delete files."""
        column = self.keys.table.column(0)
        condition: Any = AlwaysTrue()
        if not pa.types.is_boolean(column.type):
            term = Reference(self.keys.table.column_names[0])
            bounds = pc.min_max(column)
            condition = And(
                GreaterThanOrEqual(term=term, value=bounds["min"].as_py()),
                LessThanOrEqual(term=term, value=bounds["max"].as_py()),
            )
        return iter(_scan(transaction, condition).plan_files())

    def _rewrite(self, transaction: Transaction, task: FileScanTask) -> RewrittenFile | None:
        """Write and return the replacement of a data file; None if no row has a key of the job."""
        matches, _ = self.keys.matches(_read(transaction, task, self.keys.table.column_names))
        if not len(matches):
            return None
        rows = _read(transaction, task)
        keys, numbers = self.keys.matches(rows)
        mask = np.ones(rows.num_rows, bool)
        mask[numbers] = False
        written = [name for name in self.names if name in rows.column_names]
        old_values = rows.take(pa.array(numbers)).drop_columns(written)
        others = _write_data_files(transaction, rows.filter(pa.array(mask)))
        return RewrittenFile(others, keys, old_values)

    def _insert(
        self, transaction: Transaction, schema: pa.Schema, updates: Sequence[RewrittenFile]
    ) -> Iterator[DataFile]:
        """Write the rows of the job. Columns that the job does not write keep their old values."""
        tables = [update.kept for update in updates] or [pa.table({})]
        old_values = pa.concat_tables(tables)
        # for each key: its row in `old_values`, or -1
        old_rows = np.full(self.keys.table.num_rows, -1)
        if old_values.column_names:
            numbers = np.concatenate([update.keys for update in updates])
            old_rows[numbers] = np.arange(old_values.num_rows)
        first = 0
        for file in self.files:
            rows = table_in(file)
            numbers = old_rows[first : first + rows.num_rows]
            first += rows.num_rows
            chosen = pa.array(numbers, mask=numbers < 0)
            for name in old_values.column_names:
                rows = rows.append_column(name, old_values.column(name).take(chosen))
            yield from _write_data_files(transaction, cast_to(rows, schema).select(schema.names))


def keys_in(transaction: Transaction, names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the columns `names` of all rows of a table."""
    for task in _scan(transaction).plan_files():
        yield _read(transaction, task, names)


def _scan(transaction: Transaction, condition: Any = AlwaysTrue()) -> DataScan:  # noqa: B008
    return DataScan(transaction.table_metadata, transaction._table.io, row_filter=condition)


def _read(transaction: Transaction, task: FileScanTask, names: Sequence[str] = ()) -> pa.Table:
    """Return the rows of a data file without deleted rows. `names` are the columns, () is all."""
    schema = transaction.table_metadata.schema()
    wanted = schema.select(*names) if names else schema
    scan = ArrowScan(transaction.table_metadata, transaction._table.io, wanted, AlwaysTrue())
    table = refuse_pickles(scan.to_table([FileScanTask(task.file, task.delete_files)]))
    return table.select(names) if names else table


def _write_data_files(transaction: Transaction, rows: pa.Table) -> list[DataFile]:
    if not rows.num_rows:
        return []
    io = transaction._table.io
    return list(_dataframe_to_data_files(transaction.table_metadata, rows, io))
