"""Reads CSV files with pyarrow.

Every field is read as bytes and then cast, so a value of the wrong type fails only its own row, not
the whole file. Column types are inferred from the first rows of a few files and apply to all files.
A column without an inferred type is text.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pac

from batchinference.pipeline.input.readers import latin1
from batchinference.pipeline.input.readers.base import BadRow, Chunk
from batchinference.pipeline.input.readers.chunks import after, size_of
from batchinference.pipeline.input.readers.csv_end import (
    MARK,
    Marked,
    check_columns,
    without_mark,
)
from batchinference.pipeline.input.readers.csv_ragged import InOrder
from batchinference.pipeline.input.readers.inference import agreed_types
from batchinference.pipeline.input.readers.inspection import inspected
from batchinference.pipeline.input.readers.lines import estimated_rows, packed_or_not, sample_of
from batchinference.pipeline.storage.location import Location

if TYPE_CHECKING:
    from batchinference.spec.read import CsvOptions

BLOCK_BYTES = 1 << 20
_MISSING = pa.array(pac.ConvertOptions().null_values, pa.string())
"""Texts that mean a missing value in columns that are not text."""


class CsvReader:
    extensions = packed_or_not("csv", "tsv")
    rows_exact = False

    def __init__(self, options: CsvOptions) -> None:
        self._delimiter = options.delimiter
        self._names = options.column_names
        self._most = max(options.row_bytes, BLOCK_BYTES)
        self._types: dict[str, pa.DataType] = {}

    def prepare(self, samples: list[Location]) -> None:
        found = inspected(samples, lambda sample: list(self._infer(sample_of(sample))))
        schemas = (schema for _, inferred in found for schema in inferred)
        agreed = agreed_types(schemas, lambda *_: pa.string())
        self._types = {name: _text_if_unknown(kind) for name, kind in agreed.items()}

    def _infer(self, sample: bytes) -> Iterator[pa.Schema]:
        check_columns(sample, self._delimiter)
        plain = _Way(len(sample) + 1, ())
        for way in (plain, plain.bytewise()):
            reading, parsing = self._reading(way), self._parsing(deque())
            try:
                table = pac.read_csv(io.BytesIO(sample), reading, parsing)
                floats = [field.name for field in table.schema if pa.types.is_float64(field.type)]
                if floats:
                    as_text = pac.ConvertOptions(column_types=dict.fromkeys(floats, pa.string()))
                    table = pac.read_csv(io.BytesIO(sample), reading, parsing, as_text)
                    table = _with_numbers(table, floats)
                yield table.rename_columns(self._names_of(table.column_names, way)).schema
                return
            except (pa.ArrowInvalid, UnicodeDecodeError):
                continue  # the rows of a damaged file become failed rows when it is read

    def read(self, file: Location) -> Iterator[Chunk]:
        done, way = 0, _Way(BLOCK_BYTES, tuple(self._types))
        while True:
            try:
                for chunk in after(done, self._chunks(file, way)):
                    done += size_of(chunk)
                    yield chunk
                return
            except _ReadAgain as again:
                way = again.way

    def _chunks(self, file: Location, way: _Way) -> Iterator[Chunk]:
        """Yield the rows of a file. Their order is the same for every `way`.

        Raises _ReadAgain if the file must be read in another way."""
        rejected: deque[pac.InvalidRow] = deque()
        rows = InOrder(rejected, header=self._names is None)
        # as bytes: in text columns, pyarrow would validate the encoding of a whole block at once
        types = pac.ConvertOptions(column_types=dict.fromkeys(way.columns, pa.binary()))
        lost: BadRow | None = None
        parsing = self._parsing(rejected)
        with file.filesystem.open_input_stream(file.path) as source:
            try:
                reader = pac.open_csv(
                    Marked(source, self._delimiter), self._reading(way), parsing, types
                )
                if reader.schema.names == [MARK]:
                    return  # the file has only blank lines
                if new := set(reader.schema.names) - set(way.columns):
                    raise _ReadAgain(replace(way, columns=(*way.columns, *sorted(new))))
                for batch in reader:
                    table, lost = without_mark(pa.table(batch))
                    for chunk in rows.with_rejected(table):
                        yield from self._cast(chunk, way)
            except (pa.ArrowInvalid, UnicodeDecodeError) as error:
                if "Empty CSV file" not in str(error):
                    yield from self._otherwise(way, error)
            yield from rows.rest()
            if lost:
                yield lost

    def _otherwise(self, way: _Way, error: ValueError) -> Iterator[Chunk]:
        """Raise _ReadAgain with another way to read a file that the parser rejected.

        Yield a BadRow for the rest of the file if there is no other way."""
        if "straddling object" not in str(error):
            if not way.by_bytes:
                raise _ReadAgain(way.bytewise()) from error
        elif way.block < self._most:
            raise _ReadAgain(replace(way, block=min(16 * way.block, self._most))) from error
        else:
            error = ValueError(f"a row has more bytes than max_row_bytes ({self._most})")
        yield BadRow(error)  # the rest of the file counts as one row

    def _reading(self, way: _Way) -> pac.ReadOptions:
        encoding = latin1.ENCODING if way.by_bytes else "utf8"
        return pac.ReadOptions(
            column_names=self._names, use_threads=False, block_size=way.block, encoding=encoding
        )

    def _parsing(self, rejected: deque[pac.InvalidRow]) -> pac.ParseOptions:
        def reject(row: pac.InvalidRow) -> str:
            if row.text != MARK:
                rejected.append(row)
            return "skip"

        return pac.ParseOptions(
            delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=reject
        )

    def _names_of(self, seen: list[str], way: _Way) -> list[str]:
        """Return the column names. Raises UnicodeDecodeError if one is not valid UTF-8."""
        in_file = way.by_bytes and self._names is None
        return [latin1.name_of(name) for name in seen] if in_file else seen

    def _cast(self, chunk: Chunk, way: _Way) -> Iterator[Chunk]:
        if isinstance(chunk, BadRow):
            yield chunk
            return
        try:
            names = self._names_of(chunk.column_names, way)
        except UnicodeDecodeError as error:
            yield BadRow(error, chunk.num_rows)
            return
        table = (latin1.with_bytes(chunk) if way.by_bytes else chunk).rename_columns(names)
        try:
            yield self._typed(table)
        except pa.ArrowInvalid:
            yield from self._one_by_one(table)

    def _one_by_one(self, table: pa.Table) -> Iterator[Chunk]:
        start = 0
        for row in range(table.num_rows):
            try:
                self._typed(table.slice(row, 1))
            except pa.ArrowInvalid as error:
                yield self._typed(table.slice(start, row - start))
                yield BadRow(error)
                start = row + 1
        yield self._typed(table.slice(start))

    def _typed(self, table: pa.Table) -> pa.Table:
        """Return a table of bytes cast to the inferred types. Raises ArrowInvalid."""
        names = table.column_names
        columns = [
            _typed(column.cast(pa.string()), self._types.get(name, pa.string()))
            for name, column in zip(names, table.columns, strict=True)
        ]
        return pa.table(columns, names)

    def rows_in(self, file: Location, size: int) -> int | None:
        return estimated_rows(file, size)

    def columns(self) -> list[str] | None:
        return list(self._types) or None


@dataclass(frozen=True)
class _Way:
    """How a file is read: the block size in bytes, the column names as the parser returns them, and
    whether the file is read as Latin-1, so that each byte is one character."""

    block: int
    columns: tuple[str, ...]
    by_bytes: bool = False

    def bytewise(self) -> _Way:
        return _Way(self.block, tuple(map(latin1.seen_as, self.columns)), by_bytes=True)


class _ReadAgain(Exception):
    """Signals that a file must be read in another way."""

    def __init__(self, way: _Way) -> None:
        super().__init__(way)
        self.way = way


def _typed(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_string(kind):
        return column
    return _with_nulls(column).cast(kind)


def _with_nulls(column: pa.ChunkedArray) -> pa.ChunkedArray:
    trimmed = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.is_in(trimmed, _MISSING), None, trimmed)


def _with_numbers(table: pa.Table, names: list[str]) -> pa.Table:
    """Return the table with the named text columns converted to numbers.

    pyarrow infers integers beyond int64 as floats. Here they become uint64, or stay text if uint64
    cannot hold them."""
    for name in names:
        texts = _with_nulls(table.column(name))
        whole = pc.all(pc.match_substring_regex(texts, r"^[+-]?[0-9]+$")).as_py()
        try:
            column = texts.cast(pa.uint64() if whole else pa.float64())
        except pa.ArrowInvalid:
            column = texts
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _text_if_unknown(kind: pa.DataType) -> pa.DataType:
    unknown = pa.types.is_null(kind) or pa.types.is_binary(kind)
    return pa.string() if unknown else kind
