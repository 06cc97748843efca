"""The columns that travel beside the data: which row of the input this is, and what became of it.

`_bi_id` packs the number of the file (in the frozen, sorted list of the input) and the number of
the row in it. Ids depend on the input alone, so that a row has the same id in every attempt.
Rows that failed or were filtered out travel on without data, so that the sink can account for
them; an END row closes each file and carries its number of rows where others carry their own.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.plan.columns import OWN_PREFIX

ID = OWN_PREFIX + "id"
STATE = OWN_PREFIX + "state"
STEP = OWN_PREFIX + "step"
ERROR = OWN_PREFIX + "error"
TRACEBACK = OWN_PREFIX + "traceback"
OWN_COLUMNS = (ID, STATE, STEP, ERROR, TRACEBACK)

GOOD, FAILED, SKIPPED, END = range(4)

ROW_BITS = 40
MAX_FILES = 1 << (63 - ROW_BITS)
_ROW_MASK = (1 << ROW_BITS) - 1


def pack(file: int, row: int) -> int:
    return file << ROW_BITS | row


def unpack(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ids (int64) as file numbers and row numbers."""
    return ids >> ROW_BITS, ids & _ROW_MASK


def with_ids(table: pa.Table, file: int, first_row: int) -> pa.Table:
    """Good rows `first_row`... of a file."""
    start = pack(file, first_row)
    ids = pa.array(np.arange(start, start + table.num_rows, dtype=np.int64))
    return with_own_columns(table, ids)


def with_own_columns(table: pa.Table, ids: pa.Array) -> pa.Table:
    states = pa.array(np.zeros(table.num_rows, dtype=np.int8))
    return table.append_column(ID, ids).append_column(STATE, states)


def end_of_file(file: int, rows: int) -> pa.Table:
    """The row that closes a file of so many rows."""
    return _own(pa.array([pack(file, rows)], pa.int64()), END)


def failed_row(row_id: int, step: str, error: BaseException, traceback: str = "") -> pa.Table:
    """A row that is set aside, with what went wrong."""
    return _own(pa.array([row_id], pa.int64()), FAILED, step, describe(error), traceback)


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def skipped_rows(ids: pa.ChunkedArray) -> pa.Table:
    """Rows that a filter left out."""
    return _own(ids, SKIPPED)


def _own(ids: pa.Array | pa.ChunkedArray, state: int, *details: str) -> pa.Table:
    columns = [ids, pa.array(np.full(len(ids), state, dtype=np.int8))]
    columns += [pa.array([detail], pa.string()) for detail in details]
    return pa.table(columns, names=OWN_COLUMNS[: len(columns)])


def split(table: pa.Table) -> tuple[pa.Table, pa.Table | None]:
    """The good rows, and the others (None when there are none) without their empty data."""
    states = table.column(STATE)
    if pc.max(states).as_py() in (None, GOOD):
        return table, None
    good = pc.equal(states, GOOD)
    others = [name for name in OWN_COLUMNS if name in table.column_names]
    rest = table.select(others).filter(pc.invert(good))
    details = [name for name in (STEP, ERROR, TRACEBACK) if name in table.column_names]
    return table.filter(good).drop_columns(details), rest


def data_columns(table: pa.Table) -> list[str]:
    """The names of the columns that are the user's."""
    return [name for name in table.column_names if name not in OWN_COLUMNS]
