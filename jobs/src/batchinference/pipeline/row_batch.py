"""A batch of rows and its provenance: the input rows that it accounts for.

Steps see the table only. The provenance travels next to it: filtered rows and failed rows leave the
table, and an input row may become several rows. The commit of a batch therefore knows the outcome
of each input row, and the data needs no extra columns.

A row id packs the number of the file (in the sorted input snapshot) and the number of the row in
the file. Ids depend only on the input, so that a row has the same id in every attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import concat
from batchinference.pipeline.errors import describe
from batchinference.pipeline.row_warnings import NO_WARNINGS

ROW_BITS = 40
MAX_FILES = 1 << (63 - ROW_BITS)
ROW_MASK = (1 << ROW_BITS) - 1
READ_STEP = "read"
"""The step name in the error record of a row that could not be decoded, and in notes on reading."""
WRITE_STEP = "write"
"""The step name in the error record of a row that could not be written, and in notes on writing."""
NUMBERS_PER_FILE = 10**12
"""Difference between the first row numbers (`write.rowNumber`) of consecutive files."""
RowRange = tuple[int, int | None]
"""First row and row after the last; the latter is None if the end of the file is unknown."""
MissingRows = dict[int, list[RowRange]]
"""Missing rows by file number. Files without missing rows are not included."""
FULL_SHARE = 1 << 40
"""Share of an input row of which one batch holds all rows."""
ERRORS = pa.schema(
    [
        ("id", pa.int64()),
        *((name, pa.string()) for name in ("step", "error", "traceback", "values")),
    ]
)
"""The columns of failed rows. `id` is the id of the input row."""
NO_IDS = np.empty(0, dtype=np.int64)
NO_ROWS = pa.Table.from_batches([], pa.schema([]))  # pa.table would import pandas


def pack_id(file: int, row: int) -> int:
    """Return the row id of a row of a file."""
    return file << ROW_BITS | row


def unpack_ids(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the file numbers and row numbers of ids (int64)."""
    return ids >> ROW_BITS, ids & ROW_MASK


def numbers_of(ids: np.ndarray, first_file: int) -> np.ndarray:
    """Return readable row numbers for ids, in the same order (int64). `first_file` is the number of
    the first file of the input."""
    files, rows = unpack_ids(ids)
    numbers: np.ndarray = (files + first_file) * NUMBERS_PER_FILE + rows
    return numbers


def consecutive_ids(file: int, first: int, count: int) -> np.ndarray:
    """Return the ids of `count` rows of a file, from row `first` on (int64)."""
    start = pack_id(file, first)
    return np.arange(start, start + count, dtype=np.int64)


@dataclass(frozen=True)
class RowBatch:
    """Rows, and the outcome of each input row that the batch accounts for."""

    table: pa.Table = field(default_factory=lambda: NO_ROWS)
    """The user's columns of the rows that neither failed nor were filtered. Without such rows, it
    has the columns that the rows would have, or none if these are unknown."""
    ids: np.ndarray = field(default_factory=lambda: NO_IDS)
    """The id of the input row of each row of the table (int64)."""
    source: np.ndarray = field(default_factory=lambda: NO_IDS)
    """The ids of the input rows that the batch accounts for, without duplicates (int64)."""
    errors: pa.Table = field(default_factory=ERRORS.empty_table)
    """The failed rows, with the columns of ERRORS."""
    filtered: np.ndarray = field(default_factory=lambda: NO_IDS)
    """The id of the input row of each filtered row (int64)."""
    ends: tuple[tuple[int, int], ...] = ()
    """File number and row count of each file that was read to its end."""
    notes: tuple[tuple[str, str], ...] = ()
    """Pairs of a step and a note for the report, as JSON."""
    shares: np.ndarray | None = None
    """The share of each row of `source` that the batch holds (int64), if Ray split the rows of an
    input row over several blocks. None if the batch holds all rows of each input row. The shares of
    an input row in all batches add up to FULL_SHARE."""
    warnings: pa.Table = field(default_factory=lambda: NO_WARNINGS)
    """The warnings about input rows, with the columns of ROW_WARNINGS."""

    @classmethod
    def read(cls, table: pa.Table, ids: np.ndarray) -> RowBatch:
        """Return rows as they were read: each row of the table is an input row."""
        return cls(table, ids, ids)

    @classmethod
    def unreadable(cls, ids: np.ndarray, error: Exception) -> RowBatch:
        """Return rows that could not be read because of the same error."""
        texts = (READ_STEP, describe(error), "")
        columns = [pa.array(ids), *(pa.repeat(text, len(ids)) for text in texts)]
        columns.append(pa.repeat(pa.scalar(getattr(error, "values", None), pa.string()), len(ids)))
        return cls(source=ids, errors=pa.table(columns, schema=ERRORS))

    @property
    def nbytes(self) -> int:
        """The approximate memory of the batch in bytes."""
        arrays = (self.table, self.errors, self.ids, self.source, self.filtered)
        return sum(int(array.nbytes) for array in arrays)

    def derived(
        self, table: pa.Table, parents: np.ndarray, failed: Sequence[tuple[int, pa.Table]]
    ) -> RowBatch:
        """Return the batch after a step. `parents` has the index of the row that each row of
        `table` was made from; `failed` has the index and the error of each failed row. All other
        rows were filtered."""
        lost = np.ones(len(self.ids), dtype=bool)
        lost[parents] = False
        lost[[index for index, _ in failed]] = False
        return replace(
            self,
            table=table if table.num_rows else without_rows([table]),
            ids=self.ids[parents],
            errors=pa.concat_tables([self.errors, *(error for _, error in failed)]),
            filtered=np.concatenate([self.filtered, self.ids[lost]]),
        )

    def with_warnings(self, warnings: pa.Table) -> RowBatch:
        """Return the batch with further warnings, which have the columns of ROW_WARNINGS."""
        if not warnings.num_rows:
            return self
        return replace(self, warnings=pa.concat_tables([self.warnings, warnings]))

    def cut(self, rows: int) -> tuple[RowBatch, RowBatch | None]:
        """Split a batch in which no input row has several rows, or a row and an error: return its
        first rows, and the rest with its errors, filtered rows and notes. The rest is None if
        nothing is left."""
        if len(self.ids) <= rows:
            return self, None
        first = self.ids[:rows]
        one_to_one = np.array_equal(self.source, self.ids)
        remaining = self.source[rows:] if one_to_one else self.source[~np.isin(self.source, first)]
        table = self.table.slice(rows)
        rest = replace(self, table=table, ids=self.ids[rows:], source=remaining)
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
        """Whether no input row has several rows. Fast for ids in the order of the input."""
        ids = self.ids
        return bool((ids[1:] > ids[:-1]).all()) or len(np.unique(ids)) == len(ids)

    def cut_between_inputs(self, rows: int) -> tuple[RowBatch, RowBatch | None]:
        """Return at least the first rows, with all rows of their input rows, and the rest with
        everything else; None if nothing is left."""
        first, rest = self.divided(rows)
        return (first, rest) if len(rest.ids) else (self, None)

    def divided(self, rows: int) -> tuple[RowBatch, RowBatch]:
        """Split the batch: return its first rows with the outcome of their input rows, and the
        rest. The input rows of the first part must have no rows in the rest."""
        ids = np.unique(self.ids[:rows])
        tables = (self.errors, self.warnings)
        others = (table.column("id").to_numpy() for table in tables)
        known = np.concatenate([self.ids, self.source, self.filtered, *others])
        first = replace(self.only(ids), ends=(), notes=())
        return first, self.only(np.setdiff1d(known, ids))

    def taken(self, order: np.ndarray) -> RowBatch:
        """Return the batch with its rows in another order."""
        ids = self.ids[order]
        as_read = self.shares is None and np.array_equal(self.source, self.ids)
        source = ids if as_read else self.source
        return replace(self, table=self.table.take(pa.array(order)), ids=ids, source=source)

    def in_order_of(self, ids: np.ndarray) -> RowBatch:
        """Return the batch with its rows in the order of these ids of input rows (int64)."""
        if np.array_equal(self.ids, ids) and self.has_unique_ids:
            return self
        by_id = np.argsort(ids)
        places = by_id[np.searchsorted(ids, self.ids, sorter=by_id)]
        if (np.diff(places) >= 0).all():
            return self
        order = np.argsort(places, kind="stable")
        return replace(self, table=self.table.take(pa.array(order)), ids=self.ids[order])

    def only(self, ids: np.ndarray) -> RowBatch:
        """Return the part of the batch that belongs to these input rows (int64 ids)."""
        rows, source = np.isin(self.ids, ids), np.isin(self.source, ids)
        failed = np.isin(self.errors.column("id").to_numpy(), ids)
        warned = np.isin(self.warnings.column("id").to_numpy(), ids)
        return replace(
            self,
            table=_selected(self.table, rows) if rows.any() else without_rows([self.table]),
            ids=self.ids[rows],
            source=self.source[source],
            errors=self.errors.filter(pa.array(failed)),
            filtered=self.filtered[np.isin(self.filtered, ids)],
            shares=None if self.shares is None else self.shares[source],
            warnings=self.warnings.filter(pa.array(warned)),
        )


def _selected(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Return the rows of a table that a mask selects, without a copy if they are adjacent."""
    first, last = np.flatnonzero(rows)[[0, -1]]
    if rows[first : last + 1].all():
        return table.slice(first, last + 1 - first)
    return table.filter(pa.array(rows))


def merged(batches: Iterable[RowBatch]) -> RowBatch:
    """Return the rows of several batches as one batch. If they have shares, none of them may have
    an input row of another."""
    batches = list(batches)
    if len(batches) == 1:
        return batches[0]
    return RowBatch(
        concat([batch.table for batch in batches if len(batch.ids)])
        if any(len(batch.ids) for batch in batches)
        else without_rows(batch.table for batch in batches),
        _joined(batches, "ids"),
        _joined(batches, "source"),
        pa.concat_tables([ERRORS.empty_table(), *(batch.errors for batch in batches)]),
        _joined(batches, "filtered"),
        tuple(end for batch in batches for end in batch.ends),
        tuple(note for batch in batches for note in batch.notes),
        _joined_shares(batches),
        pa.concat_tables([b.warnings for b in batches if b.warnings.num_rows] or [NO_WARNINGS]),
    )


def _joined_shares(batches: list[RowBatch]) -> np.ndarray | None:
    if all(batch.shares is None for batch in batches):
        return None
    full = (np.full(len(batch.source), FULL_SHARE, dtype=np.int64) for batch in batches)
    pairs = zip(batches, full, strict=True)
    return np.concatenate([whole if one.shares is None else one.shares for one, whole in pairs])


def without_rows(tables: Iterable[pa.Table]) -> pa.Table:
    """Return the columns of the first table that has any, without rows. The result does not keep
    the rows in memory, as a slice would."""
    schemas = (table.schema for table in tables if table.num_columns)
    return next((schema.empty_table() for schema in schemas), NO_ROWS)


def _joined(batches: list[RowBatch], name: str) -> np.ndarray:
    return np.concatenate([NO_IDS, *(getattr(batch, name) for batch in batches)])


def resized(batches: Iterable[RowBatch], rows: Callable[[], int], size: int) -> Iterator[RowBatch]:
    """Yield batches that no step has changed in batches of `rows()` rows, or of fewer rows with
    `size` bytes. `rows` is called for each batch."""
    waiting: list[RowBatch] = []
    waiting_rows = waiting_bytes = 0
    for batch in batches:
        rest: RowBatch | None = batch
        while rest is not None:
            fitting = (size - waiting_bytes) * len(rest.ids) // max(1, rest.nbytes)
            first, rest = rest.cut(max(1, min(rows() - waiting_rows, fitting)))
            waiting.append(first)
            waiting_rows += len(first.ids)
            waiting_bytes += first.nbytes
            if waiting_rows >= rows() or waiting_bytes >= size:
                yield merged(waiting)
                waiting, waiting_rows, waiting_bytes = [], 0, 0
    if waiting:
        yield merged(waiting)
