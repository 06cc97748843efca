"""The datasink: each task puts its data file, its error file, and last its manifest."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from ray.data.block import Block, BlockAccessor
from ray.data.datasource import Datasink

from batchinference.pipeline import rows
from batchinference.pipeline.blocks import concat
from batchinference.pipeline.inputs import paths_of
from batchinference.pipeline.layout import Layout
from batchinference.pipeline.manifest import Counts, Manifest, WrittenFile, ends_of, ranges_of
from batchinference.pipeline.output import Attempt
from batchinference.pipeline.storage import Address
from batchinference.pipeline.writers import Writer
from batchinference.pipeline.writers.parquet import ParquetWriter

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


@dataclass(frozen=True)
class Commit:
    """Puts the rows of one task and commits them."""

    layout: Layout
    attempt: int
    writer: Writer

    def put(self, table: pa.Table, task: int) -> None:
        """Raises BadOutput when another run has taken over the output."""
        Attempt(self.layout, self.attempt).check_owner()
        good, rest = rows.split(table)
        failed = _in_state(rest, rows.FAILED)
        skipped = _in_state(rest, rows.SKIPPED)
        ends = _in_state(rest, rows.END)
        ids = [_ids(part) for part in (good, failed, skipped) if part is not None]
        counts = Counts(good.num_rows, _count(failed), _count(skipped))
        manifest = Manifest(
            self.attempt,
            task,
            counts,
            ranges_of(np.concatenate(ids)),
            ends_of(_ids(ends)),
            self._put_data(good, task),
            self._put_errors(failed, task),
        )
        target = self.layout.manifests(self.attempt) / manifest.name
        target.write(manifest.serialized())

    def _put_data(self, good: pa.Table, task: int) -> WrittenFile | None:
        if good.num_rows == 0:
            return None
        data = good.select(rows.data_columns(good))
        return self._put(self.layout.output, self.writer, data, task)

    def _put_errors(self, failed: pa.Table | None, task: int) -> WrittenFile | None:
        if failed is None or failed.num_rows == 0:
            return None
        table = error_rows(failed, paths_of(self.layout.input))
        return self._put(self.layout.errors, ParquetWriter("snappy"), table, task)

    def _put(self, place: Address, writer: Writer, table: pa.Table, task: int) -> WrittenFile:
        unique = uuid.uuid4().hex[:8]
        name = self.layout.part_name(self.attempt, task, unique, writer.extension)
        content = writer.encode(table)
        (place / name).write(content)
        return WrittenFile(name, len(content))


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
    files, positions = rows.unpack(ids)
    columns = [
        pa.array([f"{file}:{row}" for file, row in zip(files, positions, strict=True)]),
        paths.take(pa.array(files)),
        pa.array(positions),
        *(failed.column(name) for name in (rows.STEP, rows.ERROR, rows.TRACEBACK)),
    ]
    return pa.table(columns, names=ERRORS_SCHEMA.names).cast(ERRORS_SCHEMA)


def _in_state(rest: pa.Table | None, state: int) -> pa.Table | None:
    return None if rest is None else rest.filter(pc.equal(rest.column(rows.STATE), state))


def _ids(table: pa.Table | None) -> np.ndarray:
    if table is None:
        return np.empty(0, dtype=np.int64)
    ids: np.ndarray = table.column(rows.ID).to_numpy()
    return ids


def _count(table: pa.Table | None) -> int:
    return 0 if table is None else int(table.num_rows)
