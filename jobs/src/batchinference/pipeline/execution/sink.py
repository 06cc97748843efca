"""The datasink: each task puts its data file, its error file, and last its manifest."""

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
from batchinference.pipeline.output.writers import Writer
from batchinference.pipeline.output.writers.parquet import ParquetWriter, without_halves
from batchinference.pipeline.storage.location import Location

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
    """Puts the rows of one task and commits them."""

    attempt: Attempt
    writer: Writer
    cut: FileLayout

    def put(self, table: pa.Table, task: int) -> None:
        """Raises BadOutput when the output takes no more of this run, and then leaves nothing."""
        self.attempt.check_open()
        good, rest = row_ids.split(table)
        pieces = [self._piece(done, task) for done in TaskOutcome.of(good, rest).groups()]
        ends = ends_of(_ids(_in_state(rest, row_ids.END)))
        notes = [*_notes(_in_state(rest, row_ids.NOTE)), ("write", peak_note())]
        manifest = Manifest(task, pieces, ends, notes)
        self._remove_if_late(manifest)
        (self.attempt.place / manifest.new_name()).write(manifest.serialized())

    def _piece(self, done: TaskOutcome, task: int) -> ManifestEntry:
        data, errors = self._put_data(done.good, task), self._put_errors(done.failed, task)
        columns = self._columns(done.good)
        return ManifestEntry(done.counts, done.ranges, done.shares, data, columns, errors)

    def _remove_if_late(self, manifest: Manifest) -> None:
        """Remove the files of a task that comes late. Files that were put before the output was
        closed are seen by the driver, which closes it and then looks; others are removed here. So
        only a late task whose process ends between its put and this leaves a file beside the
        output, and no manifest ever names one that is gone."""
        try:
            self.attempt.check_open()
        except BadOutput:
            layout = self.attempt.layout
            for piece in manifest.pieces:
                for file in piece.data:
                    layout.data.inside(file.name).delete()
                if piece.errors:
                    (layout.errors / piece.errors.name).delete()
            raise

    def _put_data(self, good: pa.Table, task: int) -> list[DataFile]:
        if good.num_rows == 0:
            return []
        data = good.select(row_ids.data_columns(good))
        name = self._name(task)
        numbers = itertools.count()
        files = (
            (f"{directory}/" * bool(directory) + f"{name}-{next(numbers):04d}{ending}", content)
            for directory, piece in self.cut.pieces(data)
            for ending, content in self.writer.files(piece)
        )
        place = self.attempt.layout.data
        with ThreadPoolExecutor(PUT_THREADS) as pool:
            return list(pool.map(lambda file: _put(place, *file), files))

    def _columns(self, good: pa.Table) -> list[tuple[str, str]]:
        """The columns that come into the files, with their types there."""
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
    """The output of a job for Ray Data. `rows_per_file` is the least a task waits for."""

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
    """Failed rows in the form of the errors dataset."""
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
