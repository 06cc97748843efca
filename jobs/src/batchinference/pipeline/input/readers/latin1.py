"""Converts tables that pyarrow read as Latin-1, in which every byte is one character.

pyarrow reports a line with the wrong number of fields as text. If that line is not UTF-8, pyarrow
fails on the whole file. Such a file is therefore read as Latin-1, and its original bytes are
restored afterwards.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

ENCODING = "latin-1"


def seen_as(name: str) -> str:
    """Return a column name of the file as it looks when it is read as Latin-1."""
    return name.encode().decode(ENCODING)


def name_of(seen: str) -> str:
    """Return the original of a name that was read as Latin-1. Raises UnicodeDecodeError if it is
    not UTF-8."""
    return seen.encode(ENCODING).decode()


def with_bytes(table: pa.Table) -> pa.Table:
    """Return the table with the bytes of the file in place of the Latin-1 text."""
    return pa.table([_bytes(column) for column in table.columns], table.column_names)


def _bytes(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    text = column.cast(pa.string())
    if pc.all(pc.string_is_ascii(text)).as_py():
        return column
    return pa.array([value.encode(ENCODING) for value in text.to_pylist()], pa.binary())
