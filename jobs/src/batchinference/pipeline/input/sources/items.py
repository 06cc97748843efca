"""Reads rows that are written in the spec of the job (`read.items`)."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pyarrow as pa

from batchinference.pipeline.arrow import NO_VALUES, unchanged
from batchinference.pipeline.commit.manifest import digest
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.input.sources import TableInput
from batchinference.spec.read import ReadItems


def open_source(read: ReadItems) -> TableInput:
    """Return the rows as an input. Raises BadInput if values of a column have no common type."""
    items = read.items[: read.options.limit]
    names = dict.fromkeys(name for item in items for name in item)
    table = pa.table({name: _column(name, items) for name in names})
    parts = min(table.num_rows, read.options.override_num_blocks or 1)
    return TableInput(
        "items",
        [partial(_block, table, number, parts) for number in range(parts)],
        table.column_names,
        RowCount(table.num_rows, estimated=False),
        table.nbytes,
        repeatable=True,
        version=digest(json.dumps(items).encode()),
    )


def _block(table: pa.Table, number: int, parts: int) -> list[pa.Table]:
    start, end = (table.num_rows * at // parts for at in (number, number + 1))
    return [table.slice(start, end - start)]


def _column(name: str, items: list[dict[str, Any]]) -> pa.ChunkedArray:
    values = [item.get(name) for item in items]
    try:
        return unchanged(pa.chunked_array([pa.array(values)]), values)
    except NO_VALUES as error:
        raise BadInput(
            f"read.items: the values of column '{name}' have no common type ({error}). Write them "
            "in one type, for instance all in quotes"
        ) from None
