"""Reads JSON files: one object per line, or one array of objects per file.

Column types are inferred from the beginning of many files and apply to all files, so that every
output file has the same schema."""

from __future__ import annotations

import codecs
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from batchinference.pipeline.exact_json import lines_of
from batchinference.pipeline.input.json_rows import JsonRows, sampled_rows
from batchinference.pipeline.input.readers import BadRow, Chunk, Reader, inspected
from batchinference.pipeline.input.readers.records import (
    estimated_rows,
    line_chunks,
    samples_of,
    whole,
)
from batchinference.pipeline.input.signatures import no_json, packed_as
from batchinference.pipeline.storage.location import Location
from batchinference.spec.column_types import parse_types

if TYPE_CHECKING:
    from batchinference.spec.read import JsonOptions

SLICE_BYTES, LEAST_BYTES = 1 << 19, 1 << 15
"""Approximate bytes of the rows that are parsed together, and the minimum if rows may have fields
of their own."""
MAX_CELLS = 1 << 24
"""Maximum rows times columns of a table. Each cell takes 8 bytes, and more if it is text."""
_BETWEEN_ROWS = b"}\n{"
ARRAY = "a file that is one array is read with read.options.lines: false"
_NEXT_OBJECT = re.compile(rb"(?<=\})\s*\n\s*(?=\{)")
"""What separates two objects that are not on one line each. Within an object, there is a comma."""
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*"', re.DOTALL)
_KINDS = {"[": "array", '"': "text", "n": "null", "t": "boolean", "f": "boolean"}
"""The kind of a JSON value that is no object, by its first character. Any other is a number."""


def joined(parts: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yield the same rows, with adjacent tables concatenated if their schemas are equal."""
    for schema, group in itertools.groupby(parts, _schema_of):
        if schema is None:
            yield from group
        else:
            yield pa.concat_tables(group)


def _schema_of(part: Chunk) -> pa.Schema | None:
    """Return the schema of a table; None if it has no columns, because concatenating such tables
    would lose the number of rows."""
    return None if isinstance(part, BadRow) or not part.num_columns else part.schema


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


class JsonReader(Reader):
    other_format = staticmethod(no_json)

    sampled_files = 256

    def __init__(self, options: JsonOptions) -> None:
        self._lines, self._most = options.lines, options.row_bytes
        self._declared = parse_types(options.types)
        self._rows = JsonRows(self._declared, {})

    def prepare(self, samples: list[Location]) -> None:
        if self._lines:
            lines = (lines_in(sample) for _, sample in samples_of(samples))
        else:
            step = max(1, -(-len(samples) // Reader.sampled_files))
            found = inspected(samples[::step], lambda file: list(self._elements(file)))
            lines = (part for _, parts in found for part in parts if isinstance(part, bytes))
        self._rows = sampled_rows(self._declared, lines)
        if self._lines and not self._rows.schema:  # the first lines are longer than a sample
            self._rows = sampled_rows(self._declared, self._first_chunks(samples))

    def _first_chunks(self, files: list[Location]) -> Iterator[bytes]:
        chunks = inspected(
            files[: Reader.sampled_files], lambda file: next(line_chunks(file, self._most), b"")
        )
        return (chunk for _, chunk in chunks if isinstance(chunk, bytes))

    def read(self, file: Location) -> Iterator[Chunk]:
        for chunk in self._chunks(file) if self._lines else self._elements(file):
            yield from [chunk] if isinstance(chunk, BadRow) else rows_of(chunk, self._rows)

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
        if found := packed_as(content):
            raise ValueError(f"the file is {found}")
        for is_row, lines in itertools.groupby(lines_of(content), lambda line: line[:1] == "{"):
            if is_row:
                yield "".join(line + "\n" for line in lines).encode()
            else:
                error = ValueError("an element of the array is no object, and each row must be one")
                yield BadRow(error, len(list(lines)))

    def rows_in(self, file: Location, size: int) -> int | None:
        return estimated_rows(file, size) if self._lines else None

    def columns(self) -> list[str] | None:
        return self._rows.schema.names or None

    def types(self) -> dict[str, pa.DataType]:
        return {field.name: field.type for field in self._rows.schema}


def lines_in(sample: bytes) -> bytes:
    """Return a sample as JSON Lines; empty if it is no JSON."""
    try:
        return as_lines(sample) if spans_lines(sample) else sample
    except ValueError:
        return b""  # the file becomes a failed row when it is read


def rows_of(chunk: bytes, rows: JsonRows) -> Iterator[Chunk]:
    """Yield the rows of a chunk. A part that cannot be parsed is split in half until each invalid
    line is separate."""
    yield from joined(part for lines in row_slices(chunk) for part in _rows_of(lines, rows))


def _rows_of(chunk: bytes, rows: JsonRows) -> Iterator[Chunk]:
    if not chunk.strip():
        return
    try:
        yield rows.parse(chunk)
    except ValueError as error:
        lines = [line for line in chunk.splitlines(keepends=True) if line.strip()]
        if len(lines) == 1:
            cause = explained(error, lines[0].decode(errors="replace").strip())
            yield BadRow(rows.explain(lines[0], error) if cause is error else cause)
            return
        half = len(lines) // 2
        yield from _rows_of(b"".join(lines[:half]), rows)
        yield from _rows_of(b"".join(lines[half:]), rows)


def spans_lines(content: bytes) -> bool:
    """Return whether JSON begins with an array or an object that ends on a later line.

    Raises ValueError if it is UTF-16, or compressed."""
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if found := "UTF-16. Convert it to UTF-8" if wide else packed_as(content):
        raise ValueError(f"the file is {found}")
    first, _, rest = content.lstrip().partition(b"\n")
    first, next_mark = first.rstrip(), rest.lstrip()[:1]
    if not first.startswith(b"{"):
        return first.startswith(b"[") and not first.endswith(b"]")
    # in an object, a brace cannot follow a brace or a comma: then the first line is damaged
    return first.endswith((b"[", b":")) or (first.endswith((b"{", b",")) and next_mark != b"{")


def as_lines(content: bytes) -> bytes:
    """Return objects that span lines as JSON Lines. Raises ValueError for an array."""
    if content.lstrip().startswith(b"["):
        raise ValueError(f"the file is one JSON array over several lines: {ARRAY}")
    return b"\n".join(map(_as_line, _NEXT_OBJECT.split(content)))


def _as_line(row: bytes) -> bytes:
    # in a text, a line end is as invalid as a tab, and must not become a space
    row = _TEXT.sub(lambda text: re.sub(rb"[\r\n]", b"\t", text[0]), row)
    return b" ".join(row.splitlines())


def explained(error: ValueError, line: str) -> ValueError:
    """Return the error of a line that cannot be parsed, with a cause that users know."""
    if line.startswith("{"):
        comma = line.endswith("},")
        return ValueError(f"the line ends with a comma. Remove it ({error})") if comma else error
    with suppress(ValueError, RecursionError):
        json.loads(line)
        kind = _KINDS.get(line[0], "number")
        hint = f": {ARRAY}" if kind == "array" else ""
        return ValueError(f"the line is a JSON {kind}, and must be an object{hint}")
    return ValueError(f"the line is no JSON object ({error})")
