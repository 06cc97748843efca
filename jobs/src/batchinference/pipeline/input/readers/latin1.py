"""Tables that pyarrow read as Latin-1, in which every byte is a character.

pyarrow tells of a line with the wrong number of fields as text. Where that line is not UTF-8, it
gives the whole file up, so such a file is read as Latin-1, and the bytes are taken back from it.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

ENCODING = "latin-1"


def seen_as(name: str) -> str:
    """What a name of the file looks like when it is read as Latin-1."""
    return name.encode().decode(ENCODING)


def name_of(seen: str) -> str:
    """The name that was seen so. Raises UnicodeDecodeError where it is no UTF-8."""
    return seen.encode(ENCODING).decode()


def with_bytes(table: pa.Table) -> pa.Table:
    """A table with the bytes of the file in place of what was read of them."""
    return pa.table([_bytes(column) for column in table.columns], table.column_names)


def _bytes(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    text = column.cast(pa.string())
    if pc.all(pc.string_is_ascii(text)).as_py():
        return column
    return pa.array([value.encode(ENCODING) for value in text.to_pylist()], pa.binary())
