"""A batch of rows with its provenance: the input rows that it accounts for, and their outcomes.

Steps see only the table. The provenance is outside of it: filtered and failed rows leave the table,
and an input row may become several rows. The commit of a batch thus knows the outcome of each input
row, without extra columns.

A row ID contains the number of the file (in the sorted input snapshot) and the number of the row in
the file. It depends only on the input, so a row has the same ID in every pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import concat, empty_table
from batchinference.pipeline.errors import describe
from batchinference.pipeline.row_warnings import NO_WARNINGS

ROW_BITS = 40
MAX_FILES = 1 << (63 - ROW_BITS)
ROW_MASK = (1 << ROW_BITS) - 1
READ_STEP = "read"
"""The step name for rows that could not be decoded, and for notes about reading."""
WRITE_STEP = "write"
"""The step name for rows that could not be written, and for notes about writing."""
NUMBERS_PER_FILE = 10**12
"""The row numbers (`write.rowNumber`) of file n begin at n times this number."""
RowRange = tuple[int, int | None]
"""The first row, and the row after the last one; None if the end is unknown."""
MissingRows = dict[int, list[RowRange]]
"""Missing rows by file number. Files without missing rows are left out."""
FULL_SHARE = 1 << 40
"""The share of an input row in a batch that has all of its rows (see `RowBatch.shares`)."""
ERRORS = pa.schema(
    [
        ("id", pa.int64()),
        *((name, pa.string()) for name in ("step", "error", "traceback", "values")),
    ]
)
"""The columns of failed rows. `id` is the ID of the input row."""
NO_IDS = np.empty(0, dtype=np.int64)
NO_ROWS = pa.Table.from_batches([], pa.schema([]))  # pa.table would import pandas


def pack_id(file: int, row: int) -> int:
    """Return the ID of a row of a file."""
    return file << ROW_BITS | row


def unpack_ids(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the file numbers and row numbers of row IDs (int64)."""
    return ids >> ROW_BITS, ids & ROW_MASK


def numbers_of(ids: np.ndarray, first_file: int) -> np.ndarray:
    """Return the row numbers for users (`write.rowNumber`, int64) of row IDs, in the same order.
    `first_file` is the number of the first file of the input."""
    files, rows = unpack_ids(ids)
    numbers: np.ndarray = (files + first_file) * NUMBERS_PER_FILE + rows
    return numbers


def consecutive_ids(file: int, first: int, count: int) -> np.ndarray:
    """Return the IDs (int64) of `count` rows of a file, from row `first` on."""
    start = pack_id(file, first)
    return np.arange(start, start + count, dtype=np.int64)


@dataclass(frozen=True)
class RowBatch:
    """Rows, and the outcome of each input row that the batch accounts for."""

    table: pa.Table = field(default_factory=lambda: NO_ROWS)
    """The rows that neither failed nor were filtered, without IDs. An empty table still has the
    known columns."""
    ids: np.ndarray = field(default_factory=lambda: NO_IDS)
    """For each row of the table, the ID of its input row (int64)."""
    input_ids: np.ndarray = field(default_factory=lambda: NO_IDS)
    """The IDs of the input rows that the batch accounts for, without duplicates (int64)."""
    errors: pa.Table = field(default_factory=ERRORS.empty_table)
    """The failed rows, with the columns of ERRORS."""
    filtered: np.ndarray = field(default_factory=lambda: NO_IDS)
    """For each filtered row, the ID of its input row (int64)."""
    ends: tuple[tuple[int, int], ...] = ()
    """The file number and row count of each file that was read to its end."""
    notes: tuple[tuple[str, str], ...] = ()
    """Pairs of a step and a note for the report (JSON)."""
    shares: np.ndarray | None = None
    """For each of `input_ids`, the share of the input row in this batch (int64). The shares of an
    input row in all batches add up to FULL_SHARE. None if the batch has all rows of its input rows:
    Ray has not split them over several blocks."""
    warnings: pa.Table = field(default_factory=lambda: NO_WARNINGS)
    """The warnings about input rows, with the columns of ROW_WARNINGS."""

    @classmethod
    def read(cls, table: pa.Table, ids: np.ndarray) -> RowBatch:
        """Return a batch of rows from a reader: each row of the table is an input row."""
        return cls(table, ids, ids)

    @classmethod
    def unreadable(cls, ids: np.ndarray, error: Exception) -> RowBatch:
        """Return a batch of rows that could not be read, and have all failed with one error."""
        texts = (READ_STEP, describe(error), "")
        columns = [pa.array(ids), *(pa.repeat(text, len(ids)) for text in texts)]
        columns.append(pa.repeat(pa.scalar(getattr(error, "values", None), pa.string()), len(ids)))
        return cls(input_ids=ids, errors=pa.table(columns, schema=ERRORS))

    @property
    def nbytes(self) -> int:
        """The approximate size of the batch in memory in bytes."""
        arrays = (self.table, self.errors, self.ids, self.input_ids, self.filtered)
        return sum(int(array.nbytes) for array in arrays)

    def derived(
        self, table: pa.Table, parents: np.ndarray, failed: Sequence[tuple[int, pa.Table]]
    ) -> RowBatch:
        """Return the batch after a step has made `table` from it. `parents` has the index of the
        row of this batch from which each row of `table` was made. `failed` has the index and the
        error of each failed row. The remaining rows of this batch were filtered."""
        filtered = np.ones(len(self.ids), dtype=bool)
        filtered[parents] = False
        filtered[[index for index, _ in failed]] = False
        return replace(
            self,
            table=table if table.num_rows else without_rows([table]),
            ids=self.ids[parents],
            errors=pa.concat_tables([self.errors, *(row for _, row in failed)]).combine_chunks(),
            filtered=np.concatenate([self.filtered, self.ids[filtered]]),
        )

    def with_warnings(self, warnings: pa.Table) -> RowBatch:
        """Return the batch with further warnings, which have the columns of ROW_WARNINGS."""
        if not warnings.num_rows:
            return self
        return replace(self, warnings=pa.concat_tables([self.warnings, warnings]))

    def split_at(self, rows: int) -> tuple[RowBatch, RowBatch | None]:
        """Return the first `rows` rows, and the rest of the batch; None if there are no more rows.
        The rest has all errors, filtered rows, `ends` and `notes`. No input row may have several
        rows, a share, or both a row and an error."""
        if len(self.ids) <= rows:
            return self, None
        first = self.ids[:rows]
        one_to_one = np.array_equal(self.input_ids, self.ids)
        inputs = self.input_ids
        remaining = inputs[rows:] if one_to_one else inputs[~np.isin(inputs, first)]
        table = self.table.slice(rows)
        rest = replace(self, table=table, ids=self.ids[rows:], input_ids=remaining)
        begin = RowBatch.read(self.table.slice(0, rows), first)
        if not self.warnings.num_rows:
            return begin, rest
        of_first = np.isin(self.warnings.column("id").to_numpy(), first)
        begin, rest = (
            replace(part, warnings=self.warnings.filter(pa.array(rows)))
            for part, rows in ((begin, of_first), (rest, ~of_first))
        )
        return begin, rest

    @property
    def has_unique_ids(self) -> bool:
        """Whether no input row has several rows. Fast if the IDs are in input order."""
        ids = self.ids
        return bool((ids[1:] > ids[:-1]).all()) or len(np.unique(ids)) == len(ids)

    def split_between_inputs(self, rows: int) -> tuple[RowBatch, RowBatch | None]:
        """Return the first `rows` rows with all that belongs to their input rows, and the rest of
        the batch. Return the batch and None if the rest would have no rows."""
        first, rest = self.split_with_outcomes(rows)
        return (first, rest) if len(rest.ids) else (self, None)

    def split_with_outcomes(self, rows: int) -> tuple[RowBatch, RowBatch]:
        """Return the batch of the input rows of the first `rows` rows, with all their outcomes.
        Also return the rest of the batch, which has `ends` and `notes`."""
        ids = np.unique(self.ids[:rows])
        first = replace(self.select_inputs(ids), ends=(), notes=())
        return first, self.without_inputs(ids)

    def all_ids(self) -> np.ndarray:
        """Return all input row IDs in the batch, with duplicates (int64)."""
        tables = (self.errors, self.warnings)
        of_tables = (table.column("id").to_numpy() for table in tables)
        return np.concatenate([self.ids, self.input_ids, self.filtered, *of_tables])

    def reordered(self, order: np.ndarray) -> RowBatch:
        """Return the batch with its rows in the order of these row indexes."""
        ids = self.ids[order]
        as_read = self.shares is None and np.array_equal(self.input_ids, self.ids)
        source = ids if as_read else self.input_ids
        return replace(self, table=self.table.take(pa.array(order)), ids=ids, input_ids=source)

    def in_order_of(self, ids: np.ndarray) -> RowBatch:
        """Return the batch with its rows in the order of these input row IDs (int64)."""
        if np.array_equal(self.ids, ids) and self.has_unique_ids:
            return self
        by_id = np.argsort(ids)
        positions = by_id[np.searchsorted(ids, self.ids, sorter=by_id)]
        if (np.diff(positions) >= 0).all():
            return self
        order = np.argsort(positions, kind="stable")
        return replace(self, table=self.table.take(pa.array(order)), ids=self.ids[order])

    def select_inputs(self, ids: np.ndarray) -> RowBatch:
        """Return what belongs to input rows with these IDs (int64), and all `ends` and `notes`."""
        rows, source = np.isin(self.ids, ids), np.isin(self.input_ids, ids)
        failed = np.isin(self.errors.column("id").to_numpy(), ids)
        warned = np.isin(self.warnings.column("id").to_numpy(), ids)
        return replace(
            self,
            table=_selected(self.table, rows) if rows.any() else without_rows([self.table]),
            ids=self.ids[rows],
            input_ids=self.input_ids[source],
            errors=self.errors.filter(pa.array(failed)),
            filtered=self.filtered[np.isin(self.filtered, ids)],
            shares=None if self.shares is None else self.shares[source],
            warnings=self.warnings.filter(pa.array(warned)),
        )

    def without_inputs(self, ids: np.ndarray) -> RowBatch:
        """Return the batch without what belongs to input rows with these IDs (int64). It does not
        account for them, but has all `ends` and `notes`."""
        return self.select_inputs(np.setdiff1d(self.all_ids(), ids))


def _selected(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Return the rows of a table that a mask selects. Adjacent rows are not copied."""
    first, last = np.flatnonzero(rows)[[0, -1]]
    if rows[first : last + 1].all():
        return table.slice(first, last + 1 - first)
    return table.filter(pa.array(rows))


def merged(batches: Iterable[RowBatch]) -> RowBatch:
    """Return several batches as one batch. They must have no input row in common."""
    batches = list(batches)
    if len(batches) == 1:
        return batches[0]
    return RowBatch(
        concat([batch.table for batch in batches if len(batch.ids)])
        if any(len(batch.ids) for batch in batches)
        else without_rows(batch.table for batch in batches),
        _joined(batches, "ids"),
        _joined(batches, "input_ids"),
        pa.concat_tables([ERRORS.empty_table(), *(b.errors for b in batches)]).combine_chunks(),
        _joined(batches, "filtered"),
        tuple(end for batch in batches for end in batch.ends),
        tuple(note for batch in batches for note in batch.notes),
        _joined_shares(batches),
        pa.concat_tables([b.warnings for b in batches if b.warnings.num_rows] or [NO_WARNINGS]),
    )


def _joined_shares(batches: list[RowBatch]) -> np.ndarray | None:
    if all(batch.shares is None for batch in batches):
        return None
    full = (np.full(len(batch.input_ids), FULL_SHARE, dtype=np.int64) for batch in batches)
    pairs = zip((batch.shares for batch in batches), full, strict=True)
    return np.concatenate([all_full if shares is None else shares for shares, all_full in pairs])


def without_rows(tables: Iterable[pa.Table]) -> pa.Table:
    """Return the first table that has columns, without its rows; NO_ROWS if no table has any.
    Unlike a slice, the result does not keep the rows in memory."""
    schemas = (table.schema for table in tables if table.num_columns)
    return next((empty_table(schema) for schema in schemas), NO_ROWS)


def _joined(batches: list[RowBatch], name: str) -> np.ndarray:
    return np.concatenate([NO_IDS, *(getattr(batch, name) for batch in batches)])


def resized(batches: Iterable[RowBatch], rows: Callable[[], int], size: int) -> Iterator[RowBatch]:
    """Yield the rows of `batches` in new batches of up to `rows()` rows and about `size` bytes.
    `rows` is called for each new batch. `batches` must be unchanged since they were read."""
    waiting: list[RowBatch] = []
    waiting_rows = waiting_bytes = 0
    for batch in batches:
        rest: RowBatch | None = batch
        while rest is not None:
            fitting = (size - waiting_bytes) * len(rest.ids) // max(1, rest.nbytes)
            first, rest = rest.split_at(max(1, min(rows() - waiting_rows, fitting)))
            waiting.append(first)
            waiting_rows += len(first.ids)
            waiting_bytes += first.nbytes
            if waiting_rows >= rows() or waiting_bytes >= size:
                yield merged(waiting)
                waiting, waiting_rows, waiting_bytes = [], 0, 0
    if waiting:
        yield merged(waiting)
