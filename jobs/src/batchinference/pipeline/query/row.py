"""Uses a row of the output as the query, selected by its number or by a unique value."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.search.index import Index
from batchinference.pipeline.search.search import one_embedding

SCAN_ROWS = 16384
SHOWN = 5


def of_row(index: Index, row: str) -> np.ndarray:
    """Return the embedding, 1 x width, of a row that is given by its number or as COLUMN=VALUE."""
    number = int(row) if row.isdecimal() else _row_where(index, row)
    if number >= index.starts[-1]:
        raise BadInput(f"there is no row {number}: '{index.output.uri}' has {index.starts[-1]} "
                       "rows, counted from 0")  # fmt: skip
    column = index.take(np.array([number]), [index.column]).column(0)
    return one_embedding(column, f"row {number} of '{index.output.uri}'")


def _row_where(index: Index, row: str) -> int:
    """Return the number of the only row that matches COLUMN=VALUE.

    Raises BadInput if no row or several rows match."""
    name, equals, value = row.partition("=")
    if not equals or name not in index.schema.names:
        raise BadInput(
            f"--row takes the number of a row or COLUMN=VALUE, got '{row}'; the columns are "
            f"{', '.join(index.schema.names)}"
        )
    wanted = _value(name, value, index.schema.field(name).type)
    found: list[int] = []
    for first, batch in index.batches([name], SCAN_ROWS):
        same = pc.fill_null(pc.equal(batch.column(name), wanted), False).to_numpy()
        found += (first + np.flatnonzero(same)).tolist()
        if len(found) > SHOWN:
            break
    if len(found) != 1:
        many = ", ".join(map(str, found[:SHOWN])) + ("..." if len(found) > SHOWN else "")
        which = f"rows {many}: choose one by its number" if found else "no row"
        raise BadInput(f"{row} is true for {which}")
    return found[0]


def _value(name: str, text: str, kind: pa.DataType) -> pa.Scalar:
    try:
        return pa.scalar(text).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise BadInput(f"--row: '{text}' is no {kind}, which column '{name}' holds") from None
