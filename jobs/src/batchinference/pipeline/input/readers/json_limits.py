"""Limits the number of different fields in the JSON rows of a file.

Every row of a table has a cell for every field of all other rows: if each line has a different
field, memory grows with the square of the number of lines, and 4 MB of them take 1 TB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pyarrow as pa

from batchinference.pipeline.input.readers.base import BadRow, Chunk

MAX_FIELDS = 4000
"""Maximum number of different fields in all rows of a file, including nested fields."""
PIECE_BYTES = 1 << 19
"""Approximate bytes of the rows that are parsed together; fewer if they could have too many
fields."""
LEAST_BYTES = 1 << 15
MAX_CELLS = 1 << 24
"""Maximum rows times columns of a table. Each cell takes 8 bytes, and more if it is text."""
_BETWEEN_ROWS = b"}\n{"
_STRING = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)(?:"(\s*:)?)?', re.DOTALL)
"""A JSON string, and the colon after it if the string is a field name."""


class TooManyFields(ValueError):
    def __init__(self) -> None:
        super().__init__(f"the rows of the file have more than {MAX_FIELDS} different fields")


class Fields:
    """The fields of a file, except those that are known from other files."""

    def __init__(self, known: pa.Schema, columns: Iterable[str] = ()) -> None:
        """`columns` are also known, but not the fields nested in them."""
        self._known = {path for field in known for path in _paths(field, "")}
        self._known |= {_path("", name) for name in columns}
        self._seen: set[str] = set()

    def add(self, schema: pa.Schema) -> None:
        """Add the fields of a schema. Raises TooManyFields."""
        self._add({path for field in schema for path in _paths(field, "")})

    def add_columns(self, names: Iterable[str]) -> None:
        """Add columns without their nested fields. Raises TooManyFields."""
        self._add({_path("", name) for name in names})

    def _add(self, paths: set[str]) -> None:
        seen = self._seen | (paths - self._known)
        if len(seen) > MAX_FIELDS:
            raise TooManyFields
        self._seen = seen


def _paths(field: pa.Field, above: str) -> Iterator[str]:
    path = _path(above, field.name)
    yield path
    for number in range(field.type.num_fields):
        yield from _paths(field.type.field(number), path)


def _path(above: str, name: str) -> str:
    return f"{above}/{name}"


def joined(parts: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yield the same rows, with adjacent tables concatenated if their schemas are equal."""
    tables: list[pa.Table] = []
    for part in parts:
        if tables and not _fits(part, tables):
            yield _one(tables)
            tables = []
        if isinstance(part, BadRow):
            yield part
        else:
            tables.append(part)
    if tables:
        yield _one(tables)


def _fits(part: Chunk, tables: list[pa.Table]) -> bool:
    first = tables[0]
    if isinstance(part, BadRow) or part.schema != first.schema or not first.num_columns:
        return False  # concatenating tables without columns would lose the number of rows
    rows: int = sum(table.num_rows for table in tables)
    columns: int = first.num_columns
    return rows * columns <= MAX_CELLS


def _one(tables: list[pa.Table]) -> pa.Table:
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables)


def pieces(rows: bytes) -> Iterator[bytes]:
    """Yield small groups of JSON rows, split between objects if possible, else between lines."""
    start = 0
    while start < len(rows):
        stop = _cut(rows, start, start + _size(rows, start))
        yield rows[start:stop]
        start = stop


def _size(rows: bytes, start: int) -> int:
    """Return the number of bytes for the next group of rows, at least LEAST_BYTES.

    Above LEAST_BYTES, the rows have at most MAX_CELLS cells even if each colon belongs to a
    different field."""
    size = PIECE_BYTES
    while size > LEAST_BYTES:
        lines, colons = (rows.count(mark, start, start + size) for mark in (b"\n", b":"))
        if lines * colons <= MAX_CELLS:
            break
        size //= 2
    return size


def _cut(rows: bytes, start: int, stop: int) -> int:
    if stop >= len(rows):
        return len(rows)
    objects = rows.rfind(_BETWEEN_ROWS, start, stop)
    if objects >= 0:
        return objects + 2
    line = rows.rfind(b"\n", start, stop) + 1 or rows.find(b"\n", stop) + 1
    return line or len(rows)


def check_names(rows: bytes) -> None:
    """Raise TooManyFields for a long row with more than MAX_FIELDS names, before it is parsed.

    Shorter rows are checked after they are parsed."""
    large = len(rows) > PIECE_BYTES and rows.count(b":") > MAX_FIELDS
    if large and len({found[1] for found in _STRING.finditer(rows) if found[2]}) > MAX_FIELDS:
        raise TooManyFields
