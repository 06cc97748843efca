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

from batchinference.pipeline import rows
from batchinference.pipeline.attempt import Attempt
from batchinference.pipeline.blocks import concat
from batchinference.pipeline.failures import BadOutput
from batchinference.pipeline.inputs import paths_of
from batchinference.pipeline.manifest import (
    Counts,
    Manifest,
    WrittenFile,
    ends_of,
    ranges_of,
    whole_and_parts,
)
from batchinference.pipeline.process_memory import peak_note
from batchinference.pipeline.storage import Address
from batchinference.pipeline.writers import Writer
from batchinference.pipeline.writers.base import plain_schema
from batchinference.pipeline.writers.cut import Cut
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


PUT_THREADS = 8


@dataclass(frozen=True)
class Commit:
    """Puts the rows of one task and commits them."""

    attempt: Attempt
    writer: Writer
    cut: Cut

    def put(self, table: pa.Table, task: int) -> None:
        """Raises BadOutput when the output takes no more of this run, and then leaves nothing."""
        self.attempt.check_open()
        good, rest = rows.split(table)
        failed = _in_state(rest, rows.FAILED)
        skipped = _in_state(rest, rows.SKIPPED)
        done = [part for part in (good, failed, skipped) if part is not None and part.num_rows]
        whole, shares, read = _rows_of_input(done)
        manifest = Manifest(
            attempt=self.attempt.number,
            task=task,
            counts=Counts(read, good.num_rows, _count(failed), _count(skipped)),
            ranges=ranges_of(whole),
            shares=shares,
            ends=ends_of(_ids(_in_state(rest, rows.END))),
            data=self._put_data(good, task),
            columns=self._columns(good),
            errors=self._put_errors(failed, task),
            notes=[*_notes(_in_state(rest, rows.NOTE)), ("write", peak_note())],
        )
        self._remove_if_late(manifest)
        target = self.attempt.layout.manifests(self.attempt.number) / manifest.name
        target.write(manifest.serialized())

    def _remove_if_late(self, manifest: Manifest) -> None:
        """Remove the files of a task that comes late. Files that were put before the output was
        closed are seen by the driver, which closes it and then looks; others are removed here. So
        only a late task whose process ends between its put and this leaves a file beside the
        output, and no manifest ever names one that is gone."""
        try:
            self.attempt.check_open()
        except BadOutput:
            layout = self.attempt.layout
            for file in manifest.data:
                (layout.data / file.name).delete()
            if manifest.errors:
                (layout.errors / manifest.errors.name).delete()
            raise

    def _put_data(self, good: pa.Table, task: int) -> list[WrittenFile]:
        if good.num_rows == 0:
            return []
        data = good.select(rows.data_columns(good))
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
        names = self.cut.written(rows.data_columns(good))
        return [(field.name, str(field.type)) for field in plain_schema(good.select(names))]

    def _put_errors(self, failed: pa.Table | None, task: int) -> WrittenFile | None:
        if failed is None or failed.num_rows == 0:
            return None
        table = error_rows(failed, paths_of(self.attempt.layout.input))
        ((ending, content),) = ParquetWriter("snappy").files(table)
        return _put(self.attempt.layout.errors, self._name(task) + ending, content)

    def _name(self, task: int) -> str:
        layout, number = self.attempt.layout, self.attempt.number
        return layout.part_name(number, task, uuid.uuid4().hex[:8])


def _put(place: Address, name: str, content: bytes | memoryview) -> WrittenFile:
    (place / name).write(content)
    return WrittenFile(name, len(content))


def _rows_of_input(
    tables: list[pa.Table],
) -> tuple[np.ndarray, list[tuple[int, int, int]], int]:
    """Of the rows that a task holds: the ids of whole ones, the shares of others, their number."""
    if not tables:
        return np.empty(0, dtype=np.int64), [], 0
    ids = np.concatenate([rows.ids_of(table) for table in tables])
    shares = [rows.shares_of(table) for table in tables]
    if all(share is None for share in shares):
        return ids, [], len(ids)
    filled = [
        np.full(table.num_rows, rows.WHOLE) if share is None else share
        for table, share in zip(tables, shares, strict=True)
    ]
    whole, parts = whole_and_parts(ids, np.concatenate(filled))
    return whole, parts, len(whole) + sum(share for _, _, share in parts) // rows.WHOLE


def _notes(rest: pa.Table | None) -> list[tuple[str, str]]:
    if rest is None or rest.num_rows == 0:
        return []
    columns = (rest.column(name).to_pylist() for name in (rows.STEP, rows.ERROR))
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
