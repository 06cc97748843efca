"""The columns that travel beside the data: which row of the input this is, and what became of it.

`_bi_id` packs the number of the file (in the frozen, sorted list of the input) and the number of
the row in it. Ids depend on the input alone, so that a row has the same id in every attempt.
Rows that failed or were filtered out travel on without data, so that the sink can account for
them; an END row closes each file and carries its number of rows where others carry their own.

A row of the input may become several. Each of them carries its id, and a share of it: the shares
of what has come of a row add up to WHOLE, however often it was divided. The column is there only
where something was divided, and null stands for WHOLE.

A column that is null throughout a table has no type, and Ray cannot join it with tensors. Between
stages it is therefore left out, and named in NULLS.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.errors import shown
from batchinference.plan.columns import OWN_PREFIX

ID = OWN_PREFIX + "id"
STATE = OWN_PREFIX + "state"
SHARE = OWN_PREFIX + "share"
NULLS = OWN_PREFIX + "nulls"
STEP = OWN_PREFIX + "step"
ERROR = OWN_PREFIX + "error"
TRACEBACK = OWN_PREFIX + "traceback"
OWN_COLUMNS = (ID, STATE, SHARE, NULLS, STEP, ERROR, TRACEBACK)

GOOD, FAILED, SKIPPED, END, NOTE = range(5)
"""NOTE rows stand for no row of the input: they tell the driver, by way of the sink, something of
the step that they name."""

MAX_RUNS = 64
"""Parts of a table that good rows may be in without being copied together."""
FULL_SHARE = 1 << 40
ROW_BITS = 40
MAX_FILES = 1 << (63 - ROW_BITS)
ROW_MASK = (1 << ROW_BITS) - 1
READ_STEP = "read"
"""The step that is named in the error of a row which could not be decoded."""
RowRange = tuple[int, int | None]
"""First row, row after the last; None where the end of the file is not known."""
MissingRows = dict[int, list[RowRange]]
"""Rows that are missing, by file; a file that has all of its rows is not there."""


def pack(file: int, row: int) -> int:
    return file << ROW_BITS | row


def unpack(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ids (int64) as file numbers and row numbers."""
    return ids >> ROW_BITS, ids & ROW_MASK


def with_ids(table: pa.Table, file: int, first_row: int) -> pa.Table:
    """Good rows `first_row`... of a file."""
    start = pack(file, first_row)
    ids = pa.array(np.arange(start, start + table.num_rows, dtype=np.int64))
    return with_own_columns(table, ids)


def with_own_columns(
    table: pa.Table, ids: pa.Array | pa.ChunkedArray, shares: np.ndarray | None = None
) -> pa.Table:
    """Good rows. `shares` is None where all are whole."""
    states = pa.array(np.zeros(table.num_rows, dtype=np.int8))
    table = table.append_column(ID, ids).append_column(STATE, states)
    return table if shares is None else table.append_column(SHARE, pa.array(shares))


def ids_of(table: pa.Table) -> np.ndarray:
    """The ids of rows, int64."""
    ids: np.ndarray = table.column(ID).to_numpy()
    return ids


def shares_of(table: pa.Table) -> np.ndarray | None:
    """The shares of rows, int64; None where all are whole."""
    if SHARE not in table.column_names:
        return None
    shares: np.ndarray = pc.fill_null(table.column(SHARE), FULL_SHARE).to_numpy()
    return shares


def end_of_file(file: int, rows: int) -> pa.Table:
    """The row that closes a file of so many rows."""
    return _one(pack(file, rows), END)


def unreadable_rows(file: int, first: int, count: int, step: str, error: Exception) -> pa.Table:
    """Rows `first`... of a file that all failed by the same error."""
    start = pack(file, first)
    texts = {STEP: step, ERROR: describe(error), TRACEBACK: ""}
    columns = {
        ID: np.arange(start, start + count, dtype=np.int64),
        STATE: np.full(count, FAILED, dtype=np.int8),
    }
    return pa.table(columns | {name: pa.repeat(text, count) for name, text in texts.items()})


def failed_row(
    row_id: int, step: str, error: BaseException, traceback: str = "", share: int = FULL_SHARE
) -> pa.Table:
    """A row that is set aside, with what went wrong."""
    table = _one(row_id, FAILED, {STEP: step, ERROR: describe(error), TRACEBACK: traceback})
    return (
        table if share == FULL_SHARE else table.append_column(SHARE, pa.array([share], pa.int64()))
    )


def describe(error: BaseException) -> str:
    """An error as a person reads it, of bounded length and without secrets."""
    return shown(f"{type(error).__name__}: {error}")


def note_row(step: str, text: str) -> pa.Table:
    """Something that the driver is to know of a step."""
    return _one(0, NOTE, {STEP: step, ERROR: text})


def skipped_rows(ids: np.ndarray, shares: np.ndarray | None = None) -> pa.Table:
    """Rows that a step left out."""
    columns = {ID: ids, STATE: np.full(len(ids), SKIPPED, dtype=np.int8)}
    return pa.table(columns if shares is None else {**columns, SHARE: shares})


def _one(row_id: int, state: int, details: dict[str, str] | None = None) -> pa.Table:
    columns = {ID: pa.array([row_id], pa.int64()), STATE: pa.array([state], pa.int8())}
    texts = {name: pa.array([text], pa.string()) for name, text in (details or {}).items()}
    return pa.table(columns | texts)


def split(table: pa.Table) -> tuple[pa.Table, pa.Table | None]:
    """The good rows, and the others (None when there are none) without their empty data. Pixels
    and their like are not copied."""
    table = _opened(table)
    states = table.column(STATE)
    if pc.max(states).as_py() in (None, GOOD):
        return table, None
    good = pc.equal(states, GOOD)
    others = [name for name in OWN_COLUMNS if name in table.column_names]
    rest = table.select(others).filter(pc.invert(good))
    details = [name for name in (STEP, ERROR, TRACEBACK) if name in table.column_names]
    return _runs(table.drop_columns(details), good.to_numpy()), rest


def _runs(table: pa.Table, chosen: np.ndarray) -> pa.Table:
    """The chosen rows (bool): where they lie together as a part of the table, else copied."""
    edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
    starts, stops = edges[::2].tolist(), edges[1::2].tolist()
    if len(starts) > MAX_RUNS:
        return table.filter(pa.array(chosen))
    parts = [table.slice(start, stop - start) for start, stop in zip(starts, stops, strict=True)]
    return pa.concat_tables(parts) if parts else table.slice(0, 0)


def closed(table: pa.Table) -> pa.Table:
    """The rows as they go to the next stage."""
    empty = [
        (place, field.name)
        for place, field in enumerate(table.schema)
        if pa.types.is_null(field.type)
    ]
    if not empty:
        return table
    names = pa.array([json.dumps(empty)] * table.num_rows, pa.string())
    return table.drop_columns([name for _, name in empty]).append_column(NULLS, names)


def _opened(table: pa.Table) -> pa.Table:
    """With the columns in their places that `closed` has left out; other rows may have values in
    them."""
    if NULLS not in table.column_names:
        return table
    left_out = pc.unique(table.column(NULLS)).drop_null().to_pylist()
    table = table.drop_columns([NULLS])
    for place, name in (each for text in left_out for each in json.loads(text)):
        there = name in table.column_names
        column = table.column(name) if there else pa.nulls(table.num_rows)
        table = table.drop_columns([name]) if there else table
        table = table.add_column(min(place, table.num_columns), name, column)
    return table


def data_columns(table: pa.Table) -> list[str]:
    """The names of the columns that are the user's."""
    return [name for name in table.column_names if name not in OWN_COLUMNS]
