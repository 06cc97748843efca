"""Reads JSON files with pyarrow: one object per line, or one array of objects per file.

Column types are inferred from the beginning of a few files and apply to all files, so that every
output file has the same schema.

The number of different fields in the rows of a file is limited. Every row of a table has a cell for
every field of all other rows: if each line has a different field, memory grows with the square of
the number of lines, and 4 MB of them take 1 TB.
"""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as paj

from batchinference.pipeline.input.json_lines import (
    NULL_ROW,
    as_lines,
    begins_with_null,
    explained,
    has_null,
    spans_lines,
)
from batchinference.pipeline.input.readers import BadRow, Chunk, Reader, inspected
from batchinference.pipeline.input.readers.records import (
    estimated_rows,
    line_chunks,
    packed_or_not,
    sample_of,
    whole,
)
from batchinference.pipeline.schema import agreed_types
from batchinference.pipeline.storage.json import check_depth, load_limited_json
from batchinference.pipeline.storage.location import Location

if TYPE_CHECKING:
    from batchinference.spec.read import JsonOptions

MAX_FIELDS = 4000
"""Maximum number of different fields in all rows of a file, including nested fields."""
SLICE_BYTES = 1 << 19
"""Approximate bytes of the rows that are parsed together; fewer if they could have too many
fields."""
LEAST_BYTES = 1 << 15
MAX_CELLS = 1 << 24
"""Maximum rows times columns of a table. Each cell takes 8 bytes, and more if it is text."""
MAX_FILE_VALUES = 1 << 24
"""Maximum number of values of a file that is one document. Each takes at least 64 bytes."""
_BETWEEN_ROWS = b"}\n{"
_STRING = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)(?:"(\s*:)?)?', re.DOTALL)
"""A JSON string, and the colon after it if the string is a field name."""


class TooManyFields(ValueError):
    def __init__(self) -> None:
        super().__init__(
            f"the rows of the file have more than {MAX_FIELDS} different fields. Split the file, "
            "or store fields with varying names as a list of names and values"
        )


class Fields:
    """The fields of a file, without the fields that are known from other files."""

    def __init__(self, known: pa.Schema, columns: Iterable[str] = ()) -> None:
        """`columns` are also known, but not the fields nested in them."""
        self._known = {path for field in known for path in _paths(field, "")}
        self._known |= {f"/{name}" for name in columns}
        self._seen: set[str] = set()

    def add(self, schema: pa.Schema) -> None:
        """Add the fields of a schema. Raises TooManyFields."""
        self._add({path for field in schema for path in _paths(field, "")})

    def add_columns(self, names: Iterable[str]) -> None:
        """Add columns without their nested fields. Raises TooManyFields."""
        self._add({f"/{name}" for name in names})

    def _add(self, paths: set[str]) -> None:
        seen = self._seen | (paths - self._known)
        if len(seen) > MAX_FIELDS:
            raise TooManyFields
        self._seen = seen


def _paths(field: pa.Field, above: str) -> Iterator[str]:
    path = f"{above}/{field.name}"
    yield path
    for number in range(field.type.num_fields):
        yield from _paths(field.type.field(number), path)


def joined(parts: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yield the same rows, with adjacent tables concatenated if their schemas are equal."""
    tables: list[pa.Table] = []
    for part in parts:
        if tables and not _fits(part, tables):
            yield _concatenated(tables)
            tables = []
        if isinstance(part, BadRow):
            yield part
        else:
            tables.append(part)
    if tables:
        yield _concatenated(tables)


def _fits(part: Chunk, tables: list[pa.Table]) -> bool:
    first = tables[0]
    if isinstance(part, BadRow) or part.schema != first.schema or not first.num_columns:
        return False  # concatenating tables without columns would lose the number of rows
    rows: int = sum(table.num_rows for table in tables)
    columns: int = first.num_columns
    return rows * columns <= MAX_CELLS


def _concatenated(tables: list[pa.Table]) -> pa.Table:
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables)


def row_slices(rows: bytes) -> Iterator[bytes]:
    """Yield small slices of JSON rows, split between objects if possible, else between lines."""
    start = 0
    while start < len(rows):
        stop = _cut(rows, start, start + _size(rows, start))
        yield rows[start:stop]
        start = stop


def _size(rows: bytes, start: int) -> int:
    """Return the number of bytes for the next slice of rows, at least LEAST_BYTES.

    Above LEAST_BYTES, the rows have at most MAX_CELLS cells even if each colon belongs to a
    different field."""
    size = SLICE_BYTES
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
    large = len(rows) > SLICE_BYTES and rows.count(b":") > MAX_FIELDS
    if large and len({found[1] for found in _STRING.finditer(rows) if found[2]}) > MAX_FIELDS:
        raise TooManyFields


NO_SCHEMA = pa.schema([])
SMALLER_FILE = "Split the file, or write one row per line and set read.options.lines to true"
_LEAST, _MOST = -(2**63), 2**63 - 1
_LONG_NUMBER = re.compile(rb"[0-9]{19}")


class JsonReader(Reader):
    extensions = packed_or_not("json", "jsonl", "ndjson")

    def __init__(self, options: JsonOptions) -> None:
        self._lines, self._most = options.lines, options.row_bytes
        self._schema = NO_SCHEMA

    def prepare(self, samples: list[Location]) -> None:
        parts = inspected(samples, self._sample)
        self._schema = agreed_schema(part for _, found in parts for part in found)

    def _sample(self, file: Location) -> list[Chunk]:
        if not self._lines:
            chunks = [part for part in self._elements(file) if isinstance(part, bytes)]
            return few_fields(sample_rows(b"".join(chunks)))
        sample = sample_of(file)
        return few_fields(sample_rows(as_lines(sample) if spans_lines(sample) else sample))

    def read(self, file: Location) -> Iterator[Chunk]:
        fields = Fields(self._schema)
        for chunk in self._chunks(file) if self._lines else self._elements(file):
            rows = [chunk] if isinstance(chunk, BadRow) else rows_of(chunk, self._schema)
            for part in rows:
                if isinstance(part, pa.Table):
                    fields.add(part.schema)
                yield part

    def _chunks(self, file: Location) -> Iterator[bytes | BadRow]:
        """Yield a file of objects in chunks of lines. Raises ValueError if it is one array."""
        for number, chunk in enumerate(line_chunks(file, self._most)):
            if number == 0 and isinstance(chunk, bytes) and spans_lines(chunk):
                yield as_lines(whole(file, self._most))
                return
            yield chunk

    def _elements(self, file: Location) -> Iterator[bytes | BadRow]:
        """Yield the objects of a file that is one array (or one object) as JSON Lines."""
        content = whole(file, self._most)
        check_depth(content)
        value = load_limited_json(content, MAX_FILE_VALUES, SMALLER_FILE)
        rows = value if isinstance(value, list) else [value]
        for is_row, group in itertools.groupby(rows, lambda row: isinstance(row, dict)):
            if is_row:
                yield "".join(json.dumps(row) + "\n" for row in group).encode()
            else:
                error = ValueError("an element of the array is no object, and each row must be one")
                yield BadRow(error, len(list(group)))

    def rows_in(self, file: Location, size: int) -> int | None:
        return estimated_rows(file, size) if self._lines else None

    def columns(self) -> list[str] | None:
        return self._schema.names or None


def few_fields(parts: Iterable[Chunk]) -> list[Chunk]:
    """Return the chunks of a sample. Raises TooManyFields if they have too many fields."""
    fields, found = Fields(NO_SCHEMA), list[Chunk]()
    for part in parts:
        if isinstance(part, pa.Table):
            fields.add(part.schema)
        found.append(part)
    return found


def agreed_schema(parts: Iterable[Chunk]) -> pa.Schema:
    """Return the unified schema of some rows, without columns whose type is or contains null."""
    schemas = (_schema(part) for part in parts if isinstance(part, pa.Table))
    types = agreed_types(schemas, _text_or_first)
    known = [item for item in types.items() if not _has_null(item[1])]
    return pa.schema(known[:MAX_FIELDS])  # the type of any other column is inferred where it occurs


def sample_rows(sample: bytes) -> Iterator[Chunk]:
    """Yield the rows of a sample. Integers beyond the int64 range are clamped to it, because
    pyarrow would read them as floats."""
    if _LONG_NUMBER.search(sample):
        sample = b"\n".join(map(_within_int64, sample.splitlines()))
    yield from rows_of(sample, NO_SCHEMA)


def _within_int64(line: bytes) -> bytes:
    try:
        row = json.loads(line, parse_int=lambda digits: min(max(int(digits), _LEAST), _MOST))
        return json.dumps(row).encode()
    except (ValueError, RecursionError):
        return line


def _schema(part: pa.Table) -> pa.Schema:
    """Return the schema of a sample. An integer column becomes uint64 if it has a value beyond
    int64 and no negative value."""
    schema = part.schema
    for place, field in enumerate(schema):
        if pa.types.is_int64(field.type):
            found = pc.min_max(part.column(place)).as_py()
            if found["max"] == _MOST and found["min"] >= 0:
                schema = schema.set(place, field.with_type(pa.uint64()))
    return schema


def rows_of(chunk: bytes, schema: pa.Schema) -> Iterator[Chunk]:
    """Yield the rows of a chunk. A part that cannot be parsed is split in half until each invalid
    line is separate."""
    yield from joined(part for rows in row_slices(chunk) for part in _rows_of(rows, schema))


def _rows_of(chunk: bytes, schema: pa.Schema) -> Iterator[Chunk]:
    if not chunk.strip():
        return
    try:
        yield parse(chunk, schema)
    except ValueError as error:
        lines = [line for line in chunk.splitlines(keepends=True) if line.strip()]
        if len(lines) == 1:
            yield BadRow(explained(error, lines[0].decode(errors="replace").strip()))
            return
        half = len(lines) // 2
        yield from _rows_of(b"".join(lines[:half]), schema)
        yield from _rows_of(b"".join(lines[half:]), schema)


def parse(chunk: bytes, schema: pa.Schema) -> pa.Table:
    """Return the rows of some lines. Raises ValueError for invalid or too deeply nested JSON, and
    for a row that is null, which pyarrow reads as an object without fields."""
    check_depth(chunk)
    check_names(chunk)
    chunk.decode()  # pyarrow accepts invalid UTF-8
    if begins_with_null(chunk):  # pyarrow crashes
        raise ValueError(NULL_ROW)
    options = paj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer")
    # use one block, because a record must not span two blocks
    reading = paj.ReadOptions(block_size=len(chunk) + 1, use_threads=False)
    table = paj.read_json(io.BytesIO(chunk), reading, options)
    if all(column.null_count for column in table.columns) and has_null(chunk):
        raise ValueError(NULL_ROW)
    return table


def _text_or_first(known: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return string if one type is string and the other a timestamp, which JSON stores as text.
    Otherwise return the first type."""
    kinds = (known, other)
    dated = any(pa.types.is_timestamp(kind) for kind in kinds)
    return pa.string() if dated and pa.string() in kinds else known


def _has_null(kind: pa.DataType) -> bool:
    """Return whether a type, or a type nested in it, is null: all its values were missing."""
    inner = (kind.field(index).type for index in range(kind.num_fields))
    return bool(pa.types.is_null(kind)) or any(map(_has_null, inner))
