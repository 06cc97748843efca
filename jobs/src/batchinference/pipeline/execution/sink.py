"""The datasink: each write task writes data files, an error file, and last its manifest."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from ray.data.block import Block, BlockAccessor
from ray.data.datasource import Datasink

from batchinference.pipeline import row_ids
from batchinference.pipeline.arrow import concat, tensors_to_lists
from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.manifest import Manifest, ends_of
from batchinference.pipeline.commit.manifest_entry import DataFile, ManifestEntry
from batchinference.pipeline.commit.task_outcome import TaskOutcome
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.execution.memory import peak_note
from batchinference.pipeline.input.listing import paths_of
from batchinference.pipeline.output.file_layout import FileLayout
from batchinference.pipeline.output.tables import Table, table_for
from batchinference.pipeline.output.writers import Writer, writer_for
from batchinference.pipeline.output.writers.parquet import ParquetWriter, without_halves
from batchinference.pipeline.storage.location import Location
from batchinference.spec.write import Write, WriteTable

ERRORS_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("path", pa.string()),
        ("row", pa.int64()),
        ("step", pa.string()),
        ("error", pa.string()),
        ("traceback", pa.string()),
    ]
)


PUT_THREADS = 8


@dataclass(frozen=True)
class Commit:
    """Writes and commits the rows of write tasks."""

    attempt: Attempt
    writer: Writer
    cut: FileLayout

    def put(self, table: pa.Table, task: int) -> None:
        """Write and commit the rows of one task.

        Raises BadOutput, and leaves no files, if the output accepts no more commits of this run."""
        self.attempt.check_open()
        good, rest = row_ids.split(table)
        entries = [self._piece(done, task) for done in TaskOutcome.of(good, rest).groups()]
        ends = ends_of(_ids(_in_state(rest, row_ids.END)))
        notes = [*_notes(_in_state(rest, row_ids.NOTE)), ("write", peak_note())]
        manifest = Manifest(task, entries, ends, notes)
        self._remove_if_late(manifest)
        (self.attempt.place / manifest.new_name()).write(manifest.serialized())

    def _piece(self, done: TaskOutcome, task: int) -> ManifestEntry:
        data, errors = self._put_data(done.good, task), self._put_errors(done.failed, task)
        columns = self._columns(done.good)
        return ManifestEntry(done.counts, done.row_ranges, done.shares, data, columns, errors)

    def _remove_if_late(self, manifest: Manifest) -> None:
        """If the output is closed or taken over, remove the files of this late task and raise
        BadOutput.

        The driver closes the output and then lists its files, so it finds all files that were
        written before. Files that were written later are removed here. So a late task leaves
        orphan files only if its process dies between its writes and this call, and no manifest
        ever names a file that was removed."""
        try:
            self.attempt.check_open()
        except BadOutput:
            layout = self.attempt.layout
            for entry in manifest.entries:
                for file in entry.data:
                    layout.data.inside(file.name).delete()
                if entry.errors:
                    (layout.errors / entry.errors.name).delete()
            raise

    def _put_data(self, good: pa.Table, task: int) -> list[DataFile]:
        if good.num_rows == 0:
            return []
        data = good.select(row_ids.data_columns(good))
        name = self._name(task)
        numbers = itertools.count()
        files = (
            (f"{directory}/" * bool(directory) + f"{name}-{next(numbers):04d}{ending}", content)
            for directory, entry in self.cut.split(data)
            for ending, content in self.writer.files(entry)
        )
        place = self.attempt.layout.data
        with ThreadPoolExecutor(PUT_THREADS) as pool:
            return list(pool.map(lambda file: _put(place, *file), files))

    def _columns(self, good: pa.Table) -> list[tuple[str, str]]:
        """Return the names and types of the columns in the data files."""
        names = self.cut.written(row_ids.data_columns(good))
        table = tensors_to_lists(good.slice(0, 0).select(names))
        if isinstance(self.writer, ParquetWriter):
            table = without_halves(table)
        return [(field.name, str(field.type)) for field in table.schema]

    def _put_errors(self, failed: pa.Table, task: int) -> DataFile | None:
        if failed.num_rows == 0:
            return None
        table = error_rows(failed, paths_of(self.attempt.layout.input))
        ((ending, content),) = ParquetWriter("snappy").files(table)
        return _put(self.attempt.layout.errors, self._name(task) + ending, content)

    def _name(self, task: int) -> str:
        layout, number = self.attempt.layout, self.attempt.number
        return layout.part_name(number, task, uuid.uuid4().hex[:8])


def _put(place: Location, name: str, content: bytes | memoryview) -> DataFile:
    place.inside(name).write(content)
    return DataFile.of(name, content)


def _notes(rest: pa.Table | None) -> list[tuple[str, str]]:
    if rest is None or rest.num_rows == 0:
        return []
    columns = (rest.column(name).to_pylist() for name in (row_ids.STEP, row_ids.ERROR))
    return list(zip(*columns, strict=True))


class CommitSink(Datasink[None]):
    """The datasink of a job. `rows_per_file` is the minimum number of rows of a write task."""

    def __init__(self, commit: Commit, rows_per_file: int) -> None:
        self._commit = commit
        self._rows_per_file = rows_per_file

    def get_name(self) -> str:
        return "Commit"

    @property
    def min_rows_per_write(self) -> int:
        return self._rows_per_file

    def write(self, blocks: Iterable[Block], ctx: object) -> None:
        tables = [BlockAccessor.for_block(block).to_arrow() for block in blocks]
        tables = [table for table in tables if table.num_rows]
        if tables:
            self._commit.put(concat(tables), ctx.task_idx)  # type: ignore[attr-defined]


def error_rows(failed: pa.Table, paths: pa.ChunkedArray) -> pa.Table:
    """Return failed rows as error records."""
    ids = _ids(failed)
    files, positions = row_ids.unpack(ids)
    columns = [
        pa.array([f"{file}:{row}" for file, row in zip(files, positions, strict=True)]),
        paths.take(pa.array(files)),
        pa.array(positions),
        *(failed.column(name) for name in (row_ids.STEP, row_ids.ERROR, row_ids.TRACEBACK)),
    ]
    return pa.table(columns, names=ERRORS_SCHEMA.names).cast(ERRORS_SCHEMA)


def _in_state(rest: pa.Table | None, state: int) -> pa.Table | None:
    return None if rest is None else rest.filter(pc.equal(rest.column(row_ids.STATE), state))


def _ids(table: pa.Table | None) -> np.ndarray:
    if table is None:
        return np.empty(0, dtype=np.int64)
    ids: np.ndarray = table.column(row_ids.ID).to_numpy()
    return ids


def sink_for(write: Write, attempt: Attempt, rows_per_file: int) -> CommitSink:
    """Return the datasink of a target.

    `rows_per_file` is the minimum number of rows of a write task, unless files must have more."""
    cut = FileLayout.of(write)
    rows_per_task = max(rows_per_file, cut.rows_per_file or 0)
    if isinstance(write, WriteTable):
        table = table_for(write)
        return TableSink(Commit(attempt, table, cut), rows_per_task, table)
    return CommitSink(Commit(attempt, writer_for(write), cut), rows_per_task)


class TableSink(CommitSink):
    """Prepares a table on the driver before it is sent to the write tasks."""

    def __init__(self, commit: Commit, rows_per_file: int, table: Table) -> None:
        super().__init__(commit, rows_per_file)
        self._table = table

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Prepare the table. Ray calls this with the schema of the first rows that are ready."""
        known = schema if isinstance(schema, pa.Schema) else pa.schema([])
        names = [name for name in known.names if name not in row_ids.OWN_COLUMNS]
        if chosen := self._commit.cut.columns:
            names = [name for name in chosen if name in names]
        self._table.begin(pa.schema([known.field(name) for name in names]))
