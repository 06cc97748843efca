"""Encodes batches of rows as blocks of Ray Data, and decodes them.

A block has the user's columns, the input row ID of each row, and at most one sidecar row. The
sidecar row has no data, but a binary value with all that belongs to no row of the block: failed,
filtered and lost rows, ends of files, notes and warnings. A lost row is an input row without a row.
Ray may cut and concatenate blocks, but never divides a row.

Ray collects a number of rows for each write task. Empty rows after the sidecar row stand for failed
and lost rows, so Ray counts these too. Only rows with an ID have data.

If an input row became several rows, Ray may move them to different blocks. Each of these rows has a
share of the input row. A block has a column of shares only if a share is less than FULL_SHARE. Null
means FULL_SHARE.

Ray cannot concatenate a column of type null with a column of tensors. Columns with only nulls are
therefore dropped from a block. A column of texts holds their names and positions."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.arrow import concat, empty_table
from batchinference.pipeline.row_batch import (
    ERRORS,
    FULL_SHARE,
    NO_IDS,
    NO_ROWS,
    RowBatch,
    without_rows,
)
from batchinference.pipeline.row_warnings import NO_WARNINGS
from batchinference.pipeline.storage.arrow_files import read_stream, schema_of
from batchinference.spec.reserved import OWN_PREFIX

ID = OWN_PREFIX + "id"
SHARE = OWN_PREFIX + "share"
NULLS = OWN_PREFIX + "nulls"
SIDECAR = OWN_PREFIX + "sidecar"
OWN_COLUMNS = (ID, SHARE, NULLS, SIDECAR)
ROWS_PER_EMPTY_ROW = 8
"""Number of lost rows for each empty row in a block. Each failed row has its own empty row: write
tasks must commit failed rows early enough for the limits on failed rows."""
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")
COMPRESSED_BYTES = 1 << 16
"""Only larger sidecars are compressed, because compression makes encoding 8 times as slow."""


def encode(batch: RowBatch) -> pa.Table:
    """Return the batch as a block."""
    shares = Shares.of(batch)
    sidecar = Sidecar.of(batch, shares)
    if not len(batch.ids):
        return sidecar.rows()
    block = _drop_null_columns(batch.table).append_column(ID, pa.array(batch.ids))
    if shares.of_rows is not None:
        block = block.append_column(SHARE, pa.array(shares.of_rows))
    return block if sidecar.is_empty else concat([block, sidecar.rows()])


def decode(block: pa.Table) -> RowBatch:
    """Return the rows of a block, or of several concatenated blocks."""
    rows, sidecars = _split(block)
    ids = rows.column(ID).to_numpy() if rows.num_rows else NO_IDS
    if not sidecars and SHARE not in rows.column_names:
        return RowBatch.read(_user_columns(rows), ids)
    parts = [Sidecar.parse(content) for content in sidecars]
    errors = pa.concat_tables([ERRORS.empty_table(), *(part.errors for part in parts)])
    outcomes = np.concatenate(
        [ids, errors.column("id").to_numpy(), *(part.shares.lost for part in parts)]
    )
    source, shares = _sum_shares(outcomes, _shares_of(rows, parts))
    empty = without_rows(empty_table(part.schema) for part in parts)
    return RowBatch(
        _user_columns(rows) if rows.num_rows else empty,
        ids,
        source,
        errors,
        np.concatenate([NO_IDS, *(part.filtered for part in parts)]),
        tuple(end for part in parts for end in part.ends),
        tuple(note for part in parts for note in part.notes),
        shares,
        pa.concat_tables([NO_WARNINGS, *(part.warnings for part in parts)]),
    )


def has_data(block: pa.Table) -> np.ndarray:
    """Return a mask (bool) of the block rows that have data."""
    if ID not in block.column_names:
        return np.zeros(block.num_rows, dtype=bool)
    data: np.ndarray = block.column(ID).is_valid().to_numpy()
    return data


def _split(block: pa.Table) -> tuple[pa.Table, list[bytes]]:
    """Return the rows with data, and the binary values of the sidecar rows."""
    if not block.num_rows or (ID in block.column_names and not block.column(ID).null_count):
        return block, []
    data = has_data(block)
    sidecars = block.column(SIDECAR).drop_null().to_pylist()
    edges = np.flatnonzero(np.diff(data, prepend=False, append=False)).tolist()
    # slices copy no data, and are few: about one for each block of an earlier stage
    slices = [block.slice(a, b - a) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    return pa.concat_tables(slices) if slices else block.slice(0, 0), sidecars


@dataclass(frozen=True)
class Shares:
    """The lost rows of a batch, and the shares of written, failed and lost rows in their input
    rows. All shares are None if no input row is divided."""

    lost: np.ndarray
    """The IDs of the input rows that are neither in the table nor failed."""
    of_rows: np.ndarray | None = None
    of_errors: np.ndarray | None = None
    of_lost: np.ndarray | None = None

    @classmethod
    def of(cls, batch: RowBatch) -> Shares:
        """Return the shares of the rows of a batch. The share of each input row is divided exactly
        among its rows and failed rows."""
        outcomes = np.concatenate([batch.ids, batch.errors.column("id").to_numpy()])
        if batch.shares is None and _all_differ(outcomes):
            if len(outcomes) == len(batch.input_ids):
                return cls(NO_IDS)
            return cls(batch.input_ids[~np.isin(batch.input_ids, outcomes)])
        order = np.argsort(batch.input_ids)
        parents = order[np.searchsorted(batch.input_ids, outcomes, sorter=order)]
        full = np.full(len(batch.input_ids), FULL_SHARE, dtype=np.int64)
        shares = full if batch.shares is None else batch.shares
        divided = _divide_shares(shares, parents)
        lost = np.bincount(parents, minlength=len(shares)) == 0
        rows, errors = np.split(divided, [len(batch.ids)])
        return cls(batch.input_ids[lost], rows, errors, shares[lost])


def _all_differ(ids: np.ndarray) -> bool:
    return bool((np.diff(ids) > 0).all()) or len(np.unique(ids)) == len(ids)


def _divide_shares(shares: np.ndarray, parents: np.ndarray) -> np.ndarray:
    """Return the share of each child row: its part of the share of its parent row. `parents` has
    the index of each child's parent in `shares`: ([10, 4], [0, 0, 0, 1]) -> [4, 3, 3, 4]."""
    order = np.argsort(parents, kind="stable")
    ordered = parents[order]
    children = np.bincount(parents, minlength=len(shares))
    quotient, remainder = np.divmod(shares, np.maximum(children, 1))
    first = np.cumsum(children) - children
    position = np.arange(len(parents)) - first[ordered]
    divided = np.empty(len(parents), dtype=np.int64)
    divided[order] = quotient[ordered] + (position < remainder[ordered])
    return divided


@dataclass(frozen=True)
class Sidecar:
    """The provenance of a batch that belongs to no row of its table."""

    shares: Shares
    """The lost rows, and the shares of lost and failed rows."""
    filtered: np.ndarray
    errors: pa.Table
    ends: Sequence[tuple[int, int]]
    notes: Sequence[tuple[str, str]]
    warnings: pa.Table
    schema: pa.Schema
    """The columns of a batch that has no rows."""

    @classmethod
    def of(cls, batch: RowBatch, shares: Shares) -> Sidecar:
        """Return the sidecar of a batch with these shares."""
        schema = NO_ROWS.schema if len(batch.ids) else batch.table.schema
        outcomes = batch.filtered, batch.errors
        return cls(shares, *outcomes, batch.ends, batch.notes, batch.warnings, schema)

    @property
    def is_empty(self) -> bool:
        """Whether all provenance of the batch is in its table."""
        parts = self.shares.lost, self.errors, self.filtered, self.ends, self.notes, self.warnings
        return not any(map(len, parts))

    def rows(self) -> pa.Table:
        """Return the sidecar row and the empty rows that follow it."""
        empty = self.errors.num_rows + len(self.shares.lost) // ROWS_PER_EMPTY_ROW
        return pa.table({SIDECAR: pa.array([self.serialized()] + [None] * empty, pa.binary())})

    def serialized(self) -> bytes:
        """Return an Arrow stream with one row. IDs are stored as differences, which are smaller."""
        columns = {
            "lost": np.diff(self.shares.lost, prepend=0),
            "filtered": np.diff(self.filtered, prepend=0),
            "errors": _as_structs(self.errors),
            "warnings": _as_structs(self.warnings),
            "schema": pa.array([self.schema.serialize().to_pybytes()], pa.binary()),
            "of_lost": self.shares.of_lost,
            "of_errors": self.shares.of_errors,
            "ends": pa.array(np.array(self.ends, dtype=np.int64).reshape(-1)),
            "notes": pa.array([text for note in self.notes for text in note], pa.string()),
        }
        table = pa.table({name: _as_list_array(values) for name, values in columns.items()})
        sink = pa.BufferOutputStream()
        options = _OPTIONS if table.nbytes > COMPRESSED_BYTES else None
        with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
            stream.write_table(table)
        content: bytes = sink.getvalue().to_pybytes()
        return content

    @classmethod
    def parse(cls, content: bytes) -> Sidecar:
        """Return the sidecar that `serialized` has encoded."""
        row = read_stream(content)
        values = {name: row.column(name)[0].values for name in row.column_names}
        divided = (values[name] for name in ("of_errors", "of_lost"))
        shares = (None if each is None else each.to_numpy() for each in divided)
        ends, notes = values["ends"].to_pylist(), values["notes"].to_pylist()
        return cls(
            Shares(np.cumsum(values["lost"].to_numpy()), None, *shares),
            np.cumsum(values["filtered"].to_numpy()),
            pa.Table.from_struct_array(values["errors"]),
            list(zip(ends[::2], ends[1::2], strict=True)),
            list(zip(notes[::2], notes[1::2], strict=True)),
            pa.Table.from_struct_array(values["warnings"]),
            schema_of(values["schema"][0].as_py()),
        )


def _as_structs(table: pa.Table) -> pa.Array:
    """Return the rows of a table as one array of structs."""
    rows = table.combine_chunks().to_struct_array()
    if rows.num_chunks:
        return pa.concat_arrays(rows.chunks)
    return pa.array([], pa.struct(list(table.schema)))


def _as_list_array(values: pa.Array | np.ndarray | None) -> pa.Array:
    if values is None:
        return pa.nulls(1, pa.list_(pa.int64()))
    array = values if isinstance(values, pa.Array) else pa.array(values, pa.int64())
    return pa.ListArray.from_arrays(pa.array([0, len(array)], pa.int32()), array)


def _shares_of(rows: pa.Table, parts: list[Sidecar]) -> np.ndarray | None:
    """Return the shares of rows, failed rows and lost rows, in this order; None if all are full."""
    divided = SHARE in rows.column_names
    if not divided and all(part.shares.of_lost is None for part in parts):
        return None
    of_rows = pc.fill_null(rows.column(SHARE), FULL_SHARE).to_numpy() if divided else None
    return np.concatenate(
        [
            _or_full_shares(of_rows, rows.num_rows),
            *(_or_full_shares(part.shares.of_errors, len(part.errors)) for part in parts),
            *(_or_full_shares(part.shares.of_lost, len(part.shares.lost)) for part in parts),
        ]
    )


def _or_full_shares(shares: np.ndarray | None, count: int) -> np.ndarray:
    return np.full(count, FULL_SHARE, dtype=np.int64) if shares is None else shares


def _sum_shares(ids: np.ndarray, shares: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the unique IDs, and the sum of the shares of each ID; None if all sums are full."""
    if shares is None:
        return ids, None
    unique, indexes = np.unique(ids, return_inverse=True)
    sums = np.zeros(len(unique), dtype=np.int64)
    np.add.at(sums, indexes, shares)
    return unique, None if (sums == FULL_SHARE).all() else sums


def _drop_null_columns(table: pa.Table) -> pa.Table:
    """Return the table without columns of type null. The new column NULLS holds their names."""
    empty = [
        (position, field.name)
        for position, field in enumerate(table.schema)
        if pa.types.is_null(field.type)
    ]
    if not empty:
        return table
    names = pa.array([json.dumps(empty)] * table.num_rows, pa.string())
    return table.drop_columns([name for _, name in empty]).append_column(NULLS, names)


def _user_columns(rows: pa.Table) -> pa.Table:
    """Return the user's columns, with the columns that `_drop_null_columns` dropped at their
    positions. If another block had values in such a column, the column has these values."""
    dropped = (
        pc.unique(rows.column(NULLS)).drop_null().to_pylist() if NULLS in rows.schema.names else []
    )
    table = rows.drop_columns([name for name in OWN_COLUMNS if name in rows.column_names])
    for position, name in itertools.chain.from_iterable(map(json.loads, dropped)):
        exists = name in table.column_names
        column = table.column(name) if exists else pa.nulls(table.num_rows)
        table = table.drop_columns([name]) if exists else table
        table = table.add_column(min(position, table.num_columns), name, column)
    return table
