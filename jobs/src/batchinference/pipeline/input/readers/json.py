"""Reads JSON files with pyarrow: one object per line, or one array of objects per file.

Column types are inferred from the beginning of a few files and apply to all files, so that every
output file has the same schema.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as paj

from batchinference.pipeline.input.readers.base import BadRow, Chunk, inspected
from batchinference.pipeline.input.readers.json_limits import (
    MAX_FIELDS,
    Fields,
    check_names,
    joined,
    pieces,
)
from batchinference.pipeline.input.readers.records import (
    estimated_rows,
    line_chunks,
    packed_or_not,
    sample_of,
    whole,
)
from batchinference.pipeline.schema import agreed_types
from batchinference.pipeline.storage.json import check_depth
from batchinference.pipeline.storage.location import Location

if TYPE_CHECKING:
    from batchinference.spec.read import JsonOptions

NO_SCHEMA = pa.schema([])
ARRAY = "a file that is one array is read with read.options.lines: false"
_LEAST, _MOST = -(2**63), 2**63 - 1
_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_NULL_FIRST = re.compile(rb"(?:\xef\xbb\xbf|\s)*null")
"""Matches a chunk whose first row is null, on which pyarrow crashes."""


class JsonReader:
    extensions = packed_or_not("json", "jsonl", "ndjson")
    rows_exact = False

    def __init__(self, options: JsonOptions) -> None:
        self._lines, self._most = options.lines, options.row_bytes
        self._schema = NO_SCHEMA

    def prepare(self, samples: list[Location]) -> None:
        parts = inspected(samples, self._sample)
        self._schema = agreed_schema(part for _, found in parts for part in found)

    def _sample(self, file: Location) -> list[Chunk]:
        return few_fields(sample_rows(sample_of(file) if self._lines else self._as_lines(file)))

    def read(self, file: Location) -> Iterator[Chunk]:
        fields = Fields(self._schema)
        chunks = line_chunks(file, self._most) if self._lines else [self._as_lines(file)]
        for chunk in chunks:
            rows = [chunk] if isinstance(chunk, BadRow) else rows_of(chunk, self._schema)
            for part in rows:
                if isinstance(part, pa.Table):
                    fields.add(part.schema)
                yield part

    def _as_lines(self, file: Location) -> bytes:
        """Return a file that is one array of objects (or one object) as JSON Lines."""
        content = whole(file, self._most)
        check_depth(content)
        value = json.loads(content)
        rows = value if isinstance(value, list) else [value]
        return "".join(json.dumps(row) + "\n" for row in rows).encode()

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
    yield from joined(part for piece in pieces(chunk) for part in _rows_of(piece, schema))


def _rows_of(chunk: bytes, schema: pa.Schema) -> Iterator[Chunk]:
    if not chunk.strip():
        return
    try:
        yield parse(chunk, schema)
    except ValueError as error:
        lines = [line for line in chunk.splitlines(keepends=True) if line.strip()]
        if len(lines) == 1:
            array = lines[0].lstrip().startswith(b"[")
            yield BadRow(ValueError(f"{error} ({ARRAY})") if array else error)
            return
        half = len(lines) // 2
        yield from _rows_of(b"".join(lines[:half]), schema)
        yield from _rows_of(b"".join(lines[half:]), schema)


def parse(chunk: bytes, schema: pa.Schema) -> pa.Table:
    """Return the rows of some lines. Raises ValueError for invalid or too deeply nested JSON."""
    check_depth(chunk)
    check_names(chunk)
    chunk.decode()  # pyarrow accepts invalid UTF-8
    if _NULL_FIRST.match(chunk):
        chunk = chunk.replace(b"null", b"{}", 1)
    options = paj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer")
    # use one block, because a record must not span two blocks
    reading = paj.ReadOptions(block_size=len(chunk) + 1, use_threads=False)
    return paj.read_json(io.BytesIO(chunk), reading, options)


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
