"""Reads JSON files: lines of objects (also objects over several lines), or an array of objects.

Column types are inferred from samples of many files and apply to all files."""

from __future__ import annotations

import codecs
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from batchinference.pipeline.exact_json import lines_of
from batchinference.pipeline.input.json_rows import JsonRows, sampled_rows
from batchinference.pipeline.input.readers import BadRow, Chunk, Reader, inspected
from batchinference.pipeline.input.readers.text_lines import (
    CHUNK_BYTES,
    estimated_rows,
    line_chunks,
    read_whole,
    samples_of,
)
from batchinference.pipeline.input.signatures import no_json, packed_as
from batchinference.pipeline.storage.location import Location
from batchinference.spec.column_types import parse_types

if TYPE_CHECKING:
    from batchinference.spec.read import JsonOptions

SLICE_BYTES, MIN_SLICE_BYTES = 1 << 19, 1 << 15
"""Approximate bytes that are parsed together, and their minimum if rows may have many fields."""
MAX_CELLS = 1 << 24
"""Maximum cells (rows x columns) of a parsed table. A cell has 8 bytes, or more if it is text."""
_BETWEEN_ROWS = b"}\n{"
ARRAY = "a file that is one array is read with read.options.lines: false"
_NEXT_OBJECT = re.compile(rb"(?<=\})\s*\n\s*(?=\{)")
"""Matches the line end between two objects. Inside of an object, a comma would separate } and {."""
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*"', re.DOTALL)
_KINDS = {"[": "array", '"': "text", "n": "null", "t": "boolean", "f": "boolean"}
"""The kind of a JSON value by its first character. Other values are objects or numbers."""


def _schema_of(part: Chunk) -> pa.Schema | None:
    """Return the schema of a table; None for a BadRow. None also for a table without columns, which
    cannot be concatenated: the rows would be lost."""
    return None if isinstance(part, BadRow) or not part.num_columns else part.schema


def row_slices(rows: bytes, max_bytes: int = SLICE_BYTES) -> Iterator[bytes]:
    """Yield JSON rows in slices of about `max_bytes` bytes, or fewer if their table would be large
    (`_size`). Slices end after an object if possible, else after a line."""
    start = 0
    while start < len(rows):
        stop = _cut(rows, start, start + _size(rows, start, max_bytes))
        yield rows[start:stop]
        start = stop


def _size(rows: bytes, start: int, max_bytes: int) -> int:
    """Return the number of bytes of the next slice of rows. A slice above MIN_SLICE_BYTES has at
    most MAX_CELLS cells, even if each colon belongs to another field."""
    size = max_bytes
    while size > MIN_SLICE_BYTES:
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
    return rows.rfind(b"\n", start, stop) + 1 or rows.find(b"\n", stop) + 1 or len(rows)


class JsonReader(Reader):
    other_format = staticmethod(no_json)
    sampled_files = 256
    chunk_bytes = CHUNK_BYTES

    def __init__(self, options: JsonOptions) -> None:
        self._lines, self._row_bytes = options.lines, options.row_bytes
        self._declared = parse_types(options.types)
        self._rows = JsonRows(self._declared, {})

    def prepare(self, samples: list[Location]) -> None:
        if self._lines:
            lines = (lines_in(sample) for _, sample in samples_of(samples))
        else:
            step = max(1, -(-len(samples) // Reader.sampled_files))
            elements = inspected(samples[::step], lambda file: list(self._elements(file)))
            lines = (part for _, parts in elements for part in parts if isinstance(part, bytes))
        self._rows = sampled_rows(self._declared, lines)
        if self._lines and not self._rows.schema:  # the first lines are longer than a sample
            self._rows = sampled_rows(self._declared, self._first_chunks(samples))

    def _first_chunks(self, files: list[Location]) -> Iterator[bytes]:
        few = files[: Reader.sampled_files]
        chunks = inspected(few, lambda file: next(line_chunks(file, self._row_bytes), b""))
        return (chunk for _, chunk in chunks if isinstance(chunk, bytes))

    def read(self, file: Location) -> Iterator[Chunk]:
        for chunk in self._chunks(file) if self._lines else self._elements(file):
            yield from [chunk] if isinstance(chunk, BadRow) else rows_of(chunk, self._rows)

    def _chunks(self, file: Location) -> Iterator[bytes | BadRow]:
        """Yield a file of objects in chunks of lines. Raises like `spans_lines` and `as_lines`."""
        for number, chunk in enumerate(line_chunks(file, self._row_bytes, self.chunk_bytes)):
            if number == 0 and isinstance(chunk, bytes) and spans_lines(chunk):
                yield as_lines(read_whole(file, self._row_bytes))
                return
            yield chunk

    def _elements(self, file: Location) -> Iterator[bytes | BadRow]:
        """Yield the objects in an array (or one object) as JSON Lines; other items as BadRows."""
        content = read_whole(file, self._row_bytes)
        if format_ := packed_as(content):
            raise ValueError(f"the file is {format_}")
        for is_row, lines in itertools.groupby(lines_of(content), lambda line: line[:1] == "{"):
            if is_row:
                yield "".join(line + "\n" for line in lines).encode()
            else:
                error = ValueError("an element of the array is not an object, as each row must be")
                yield BadRow(error, len(list(lines)))

    def rows_in(self, file: Location, size: int) -> int | None:
        return estimated_rows(file, size) if self._lines else None

    def columns(self) -> list[str] | None:
        return self._rows.schema.names or None

    def types(self) -> dict[str, pa.DataType]:
        return {field.name: field.type for field in self._rows.schema}


def lines_in(sample: bytes) -> bytes:
    """Return a sample as JSON Lines; empty if packed, UTF-16, or an array over several lines."""
    try:
        return as_lines(sample) if spans_lines(sample) else sample
    except ValueError:
        return b""  # the file becomes a failed row when it is read


def rows_of(chunk: bytes, rows: JsonRows) -> Iterator[Chunk]:
    """Yield the rows of a chunk. Adjacent tables of the same schema are concatenated. An invalid
    line becomes a BadRow: lines that cannot be parsed are halved until the invalid one is alone."""
    parts = (part for lines in row_slices(chunk) for part in _rows_of(lines, rows))
    for schema, group in itertools.groupby(parts, _schema_of):
        if schema is None:
            yield from group
        else:
            yield pa.concat_tables(group)


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
    """Return whether JSON seems to begin with an array or object that spans several lines.
    Raises ValueError if the content is UTF-16 or of another format, such as gzip."""
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if format_ := "UTF-16. Convert it to UTF-8" if wide else packed_as(content):
        raise ValueError(f"the file is {format_}")
    first, _, rest = content.lstrip().partition(b"\n")
    first, next_mark = first.rstrip(), rest.lstrip()[:1]
    if not first.startswith(b"{"):
        return first.startswith(b"[") and not first.endswith(b"]")
    # if the next line begins with `{`, a first line that ends with `{` or `,` is a damaged row
    return first.endswith((b"[", b":")) or (first.endswith((b"{", b",")) and next_mark != b"{")


def as_lines(content: bytes) -> bytes:
    """Return objects that span several lines as JSON Lines. Raises ValueError for an array."""
    if content.lstrip().startswith(b"["):
        raise ValueError(f"the file is one JSON array over several lines: {ARRAY}")
    return b"\n".join(map(_as_line, _NEXT_OBJECT.split(content)))


def _as_line(row: bytes) -> bytes:
    # a line end in a text is invalid. It becomes a tab, which is invalid too; a space is not
    row = _TEXT.sub(lambda text: re.sub(rb"[\r\n]", b"\t", text[0]), row)
    return b" ".join(row.splitlines())


def explained(error: ValueError, line: str) -> ValueError:
    """Return an error that explains why a line cannot be parsed; `error` if this is unknown."""
    if line.startswith("{"):
        comma = line.endswith("},")
        return ValueError(f"the line ends with a comma. Remove it ({error})") if comma else error
    with suppress(ValueError, RecursionError):
        json.loads(line)
        kind = _KINDS.get(line[0], "number")
        hint = f": {ARRAY}" if kind == "array" else ""
        return ValueError(f"the line is a JSON {kind}, and must be an object{hint}")
    return ValueError(f"the line is not a JSON object ({error})")
