"""Converts the rows of stored files and tables to Python values."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import values_of
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location

Row = dict[str, Any]
ROWS_AT_ONCE = 16
"""Rows that are converted at a time: Python values may need eight times the memory of Arrow."""
DAMAGE = (
    *(ValueError, TypeError, RuntimeError, EOFError, IndexError),
    *(gzip.BadGzipFile, tarfile.TarError, zlib.error),
)
"""The errors that reading a damaged file may raise."""


def unpacked(part: Location) -> bytes:
    """Return the content of a file, decompressed if its name ends with `.gz`."""
    content = part.read()
    return gzip.decompress(content) if part.path.endswith(".gz") else content


def unreadable(part: Location, problem: object) -> BadOutput:
    """Return the error for a data file that cannot be read."""
    return BadOutput(
        f"write.path: '{part.uri}' cannot be read ({problem}). Read the file with another library"
    )


def rows_of_table(table: pa.Table) -> Iterator[Row]:
    """Yield the rows of a table. Lists and tensors with several axes become NumPy arrays."""
    for start in range(0, table.num_rows, ROWS_AT_ONCE):
        part = table.slice(start, ROWS_AT_ONCE)
        columns = [_with_arrays(column) for column in part.columns]
        for row in zip(*columns, strict=True):
            yield dict(zip(table.column_names, row, strict=True))


def _with_arrays(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column as `rows_of_table` does. Tensors with one axis become lists."""
    values = [
        value.tolist() if isinstance(value, np.ndarray) and value.ndim == 1 else value
        for value in values_of(column)
    ]
    kind, depth = column.type, 0
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind, depth = kind.value_type, depth + 1
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if depth < 2 or not number:
        return values
    return [None if value is None else _array(value, kind.to_pandas_dtype()) for value in values]


def _array(value: Any, kind: Any) -> Any:
    try:
        return np.array(value, dtype=kind)
    except (ValueError, TypeError):  # lists of different lengths, or with nulls
        return value
