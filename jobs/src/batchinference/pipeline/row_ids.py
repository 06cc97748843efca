"""Columns that accompany the data: the id of each row's input row, and the state of the row.

`_bi_id` packs the number of the file (in the sorted input snapshot) and the number of the row in
the file. Ids depend only on the input, so that a row has the same id in every attempt. Failed and
filtered rows stay in the stream without data, so that the sink can account for them. An END row
follows the last row of each file. In place of a row number, its id holds the file's row count.

An input row may become several rows. Each of them has the id of the input row and a share of it.
The shares of all rows from one input row add up to FULL_SHARE, however often it was divided. The
SHARE column exists only if a row was divided; null means FULL_SHARE.

A column with only nulls in a table has no type, and Ray cannot concatenate it with tensors. Between
stages such columns are dropped. The NULLS column holds their names and positions.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.errors import shown
from batchinference.spec.reserved import OWN_PREFIX

ID = OWN_PREFIX + "id"
STATE = OWN_PREFIX + "state"
SHARE = OWN_PREFIX + "share"
NULLS = OWN_PREFIX + "nulls"
STEP = OWN_PREFIX + "step"
ERROR = OWN_PREFIX + "error"
TRACEBACK = OWN_PREFIX + "traceback"
OWN_COLUMNS = (ID, STATE, SHARE, NULLS, STEP, ERROR, TRACEBACK)

GOOD, FAILED, SKIPPED, END, NOTE = range(5)
"""The states of a row. NOTE rows belong to no input row. They carry information about the step that
they name, through the sink to the driver."""

MAX_RUNS = 64
"""Maximum number of slices in which good rows stay without a copy."""
FULL_SHARE = 1 << 40
ROW_BITS = 40
MAX_FILES = 1 << (63 - ROW_BITS)
ROW_MASK = (1 << ROW_BITS) - 1
READ_STEP = "read"
"""The step name in the error record of a row that could not be decoded."""
RowRange = tuple[int, int | None]
"""First row and row after the last; the latter is None if the end of the file is unknown."""
MissingRows = dict[int, list[RowRange]]
"""Missing rows by file number. Files without missing rows are not included."""


def pack(file: int, row: int) -> int:
    return file << ROW_BITS | row


def unpack(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the file numbers and row numbers of ids (int64)."""
    return ids >> ROW_BITS, ids & ROW_MASK


def with_ids(table: pa.Table, file: int, first_row: int) -> pa.Table:
    """Return a table of good rows of a file with ids; the first is row `first_row`."""
    start = pack(file, first_row)
    ids = pa.array(np.arange(start, start + table.num_rows, dtype=np.int64))
    return with_own_columns(table, ids)


def with_own_columns(
    table: pa.Table, ids: pa.Array | pa.ChunkedArray, shares: np.ndarray | None = None
) -> pa.Table:
    """Return a table of good rows with these ids. `shares` is None if no row was divided."""
    states = pa.array(np.zeros(table.num_rows, dtype=np.int8))
    table = table.append_column(ID, ids).append_column(STATE, states)
    return table if shares is None else table.append_column(SHARE, pa.array(shares))


def ids_of(table: pa.Table) -> np.ndarray:
    """Return the ids of the rows (int64)."""
    ids: np.ndarray = table.column(ID).to_numpy()
    return ids


def shares_of(table: pa.Table) -> np.ndarray | None:
    """Return the shares of the rows (int64); None if no row was divided."""
    if SHARE not in table.column_names:
        return None
    shares: np.ndarray = pc.fill_null(table.column(SHARE), FULL_SHARE).to_numpy()
    return shares


def end_of_file(file: int, rows: int) -> pa.Table:
    """Return the END row of a file with `rows` rows."""
    return _one(pack(file, rows), END)


def unreadable_rows(file: int, first: int, count: int, step: str, error: Exception) -> pa.Table:
    """Return `count` failed rows of a file, from row `first` on, that have the same error."""
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
    """Return a failed row with its error."""
    table = _one(row_id, FAILED, {STEP: step, ERROR: describe(error), TRACEBACK: traceback})
    return (
        table if share == FULL_SHARE else table.append_column(SHARE, pa.array([share], pa.int64()))
    )


def describe(error: BaseException) -> str:
    """Return an error as text for people, of bounded length and without secrets."""
    return shown(f"{type(error).__name__}: {error}")


def note_row(step: str, text: str) -> pa.Table:
    """Return a NOTE row with information about a step for the driver."""
    return _one(0, NOTE, {STEP: step, ERROR: text})


def skipped_rows(ids: np.ndarray, shares: np.ndarray | None = None) -> pa.Table:
    """Return filtered rows."""
    columns = {ID: ids, STATE: np.full(len(ids), SKIPPED, dtype=np.int8)}
    return pa.table(columns if shares is None else {**columns, SHARE: shares})


def _one(row_id: int, state: int, details: dict[str, str] | None = None) -> pa.Table:
    columns = {ID: pa.array([row_id], pa.int64()), STATE: pa.array([state], pa.int8())}
    texts = {name: pa.array([text], pa.string()) for name, text in (details or {}).items()}
    return pa.table(columns | texts)


def split(table: pa.Table) -> tuple[pa.Table, pa.Table | None]:
    """Return the good rows, and the other rows without data columns (None if there are none).

    The data of good rows is not copied if it is in at most MAX_RUNS slices."""
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
    """Return the chosen rows (bool mask): slices of the table if there are few, else a copy."""
    edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
    starts, stops = edges[::2].tolist(), edges[1::2].tolist()
    if len(starts) > MAX_RUNS:
        return table.filter(pa.array(chosen))
    parts = [table.slice(start, stop - start) for start, stop in zip(starts, stops, strict=True)]
    return pa.concat_tables(parts) if parts else table.slice(0, 0)


def closed(table: pa.Table) -> pa.Table:
    """Return the rows for the next stage: without null-typed columns, which NULLS names."""
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
    """Return the table with the columns that `closed` dropped, at their positions.

    Other rows of the table may have values in these columns."""
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
    """Return the names of the user's columns."""
    return [name for name in table.column_names if name not in OWN_COLUMNS]
