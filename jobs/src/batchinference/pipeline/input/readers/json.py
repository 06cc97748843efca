"""JSON files, by pyarrow: one object a line, or one array of objects a file.

Column types are learned from the beginning of a few files and then hold for all of them, so that
every output file has the same schema.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as paj

from batchinference.pipeline.input.readers.base import BadRow, Chunk
from batchinference.pipeline.input.readers.fields import (
    MAX_FIELDS,
    Fields,
    check_names,
    joined,
    pieces,
)
from batchinference.pipeline.input.readers.inference import agreed_types
from batchinference.pipeline.input.readers.inspection import inspected
from batchinference.pipeline.input.readers.json_depth import check_depth
from batchinference.pipeline.input.readers.lines import (
    estimated_rows,
    line_chunks,
    packed_or_not,
    sample_of,
    whole,
)
from batchinference.pipeline.storage.location import Location
from batchinference.spec.read import JsonOptions

NO_SCHEMA = pa.schema([])
ARRAY = "a file that is one array is read with read.options.lines: false"
_LEAST, _MOST = -(2**63), 2**63 - 1
_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_NULL_FIRST = re.compile(rb"(?:\xef\xbb\xbf|\s)*null")
"""What pyarrow crashes of: a chunk whose first row is null."""


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
        """A file that is one array of objects (or one object) as JSON Lines."""
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
    """The rows of a sample. Raises TooManyFields."""
    fields, found = Fields(NO_SCHEMA), list[Chunk]()
    for part in parts:
        if isinstance(part, pa.Table):
            fields.add(part.schema)
        found.append(part)
    return found


def agreed_schema(parts: Iterable[Chunk]) -> pa.Schema:
    """The columns of some rows, but for those of which only nulls are known."""
    schemas = (_schema(part) for part in parts if isinstance(part, pa.Table))
    types = agreed_types(schemas, _text_or_first)
    known = [item for item in types.items() if not _has_null(item[1])]
    return pa.schema(known[:MAX_FIELDS])  # the others are columns where they are found


def sample_rows(sample: bytes) -> Iterator[Chunk]:
    """The rows of a sample. Whole numbers beyond int64, which pyarrow would take for floats, are
    the largest or smallest of it."""
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
    """The types of a sample: uint64 where it has a number beyond int64 and none below zero."""
    schema = part.schema
    for place, field in enumerate(schema):
        if pa.types.is_int64(field.type):
            found = pc.min_max(part.column(place)).as_py()
            if found["max"] == _MOST and found["min"] >= 0:
                schema = schema.set(place, field.with_type(pa.uint64()))
    return schema


def rows_of(chunk: bytes, schema: pa.Schema) -> Iterator[Chunk]:
    """The rows of a chunk. What cannot be parsed is halved until the bad line stands alone."""
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
    """The rows of some lines. Raises ValueError for what is no JSON, or nested too deep."""
    check_depth(chunk)
    check_names(chunk)
    chunk.decode()  # pyarrow would let pass what is no UTF-8
    if _NULL_FIRST.match(chunk):
        chunk = chunk.replace(b"null", b"{}", 1)
    options = paj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer")
    # one block, because a record must not straddle two
    reading = paj.ReadOptions(block_size=len(chunk) + 1, use_threads=False)
    return paj.read_json(io.BytesIO(chunk), reading, options)


def _text_or_first(known: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Text where one of the types is text and the other a date, which JSON writes as text."""
    kinds = (known, other)
    dated = any(pa.types.is_timestamp(kind) for kind in kinds)
    return pa.string() if dated and pa.string() in kinds else known


def _has_null(kind: pa.DataType) -> bool:
    """Whether a type, or one within it, is that of values that were all missing."""
    inner = (kind.field(index).type for index in range(kind.num_fields))
    return bool(pa.types.is_null(kind)) or any(map(_has_null, inner))
