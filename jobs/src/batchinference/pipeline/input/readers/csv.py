"""Reads CSV files with pyarrow.

Every field is read as bytes and then cast, so a value of the wrong type fails only its own row, not
the whole file. Column types are inferred from the first rows of a few files and apply to all files.
A column without an inferred type is text.

The rows of a file are read up to the first damage that pyarrow cannot attribute to a row. The rest
of the file is then one failed row.
"""

from __future__ import annotations

import codecs
import io
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pac

from batchinference.pipeline.input.readers import (
    MAX_COLUMNS,
    BadRow,
    Chunk,
    Reader,
    after,
    inspected,
    size_of,
)
from batchinference.pipeline.input.readers.encodings import Utf8Converter, Utf8Stream, is_utf8
from batchinference.pipeline.input.readers.records import estimated_rows, sample_of
from batchinference.pipeline.schema import agreed_types
from batchinference.pipeline.storage.csv_columns import check_columns
from batchinference.pipeline.storage.location import Location

if TYPE_CHECKING:
    from batchinference.spec.read import CsvOptions

BLOCK_BYTES = 1 << 20
_MISSING = pa.array(pac.ConvertOptions().null_values, pa.string())
"""Texts that mean a missing value in columns that are not text."""
_NAMES = [f"f{number}" for number in range(MAX_COLUMNS)]
"""The names that pyarrow generates for columns."""
_AS_BYTES = pac.ConvertOptions(column_types=dict.fromkeys(_NAMES, pa.binary()))
"""In text columns, pyarrow would validate the encoding of a whole block at once."""
_REST = "so the rest of the file cannot be read"


class CsvReader(Reader):
    def __init__(self, options: CsvOptions) -> None:
        self._delimiter = options.delimiter
        self._names = options.column_names
        self._encoding = None if is_utf8(options.encoding) else options.encoding
        self._most = max(options.row_bytes, BLOCK_BYTES)
        self._types: dict[str, pa.DataType] = {}

    def prepare(self, samples: list[Location]) -> None:
        found = inspected(samples, lambda sample: self._infer(self._in_utf8(sample_of(sample))))
        schemas = (schema for _, schema in found)
        agreed = agreed_types(schemas, lambda *_: pa.string())
        self._types = {name: _text_if_unknown(kind) for name, kind in agreed.items()}

    def _in_utf8(self, sample: bytes) -> bytes:
        return Utf8Converter(self._encoding)(sample) if self._encoding else sample

    @contextmanager
    def _opened(self, file: Location) -> Iterator[io.BufferedReader]:
        """Open a file as UTF-8."""
        with file.open_stream() as source:
            content = Utf8Stream(source, self._encoding) if self._encoding else source
            yield io.BufferedReader(content)

    def _infer(self, sample: bytes) -> pa.Schema:
        """Return the column names and types of a sample. Raises ArrowInvalid if it is damaged."""
        check_columns(sample, self._delimiter.encode())
        # a line with the wrong number of fields must be UTF-8 for pyarrow to skip it
        sample = sample.decode(errors="replace").encode()
        reading = pac.ReadOptions(
            column_names=self._names, use_threads=False, block_size=len(sample) + 1
        )
        parsing = self._parsing(deque())
        table = pac.read_csv(io.BytesIO(sample), reading, parsing)
        if self._names is None and any("\ufffd" in name for name in table.column_names):
            raise pa.ArrowInvalid("the header is not valid UTF-8")
        floats = [field.name for field in table.schema if pa.types.is_float64(field.type)]
        if floats:
            as_text = pac.ConvertOptions(column_types=dict.fromkeys(floats, pa.string()))
            table = pac.read_csv(io.BytesIO(sample), reading, parsing, as_text)
            table = _with_numbers(table, floats)
        return table.schema

    def read(self, file: Location) -> Iterator[Chunk]:
        done, block, latin = 0, BLOCK_BYTES, False
        while True:
            try:
                for chunk in after(done, self._chunks(file, block, latin=latin)):
                    done += size_of(chunk)
                    yield chunk
                return
            except (pa.ArrowInvalid, UnicodeError) as error:
                long = "straddling object" in str(error)
                if long and block < self._most:
                    block = min(16 * block, self._most)
                elif "CSV parse error" in str(error) and not latin:
                    latin = True
                else:
                    limit = f"a row has more bytes than max_row_bytes ({self._most})"
                    problem = limit if long else self._explained(error)
                    yield BadRow(ValueError(f"{problem}, {_REST}"))
                    return

    def _chunks(self, file: Location, block: int, *, latin: bool) -> Iterator[Chunk]:
        """Yield the rows of a file. Raises ArrowInvalid or UnicodeDecodeError at damaged content,
        after the rows of all blocks before it, and ArrowInvalid for a row longer than a block.

        pyarrow cannot skip a row with a wrong number of fields that is not UTF-8. If `latin`, it
        gets each byte as a character of Latin-1, so that all rows are UTF-8."""
        rejected: deque[pac.InvalidRow] = deque()
        names = None if self._names is None else _NAMES[: len(self._names)]
        reading = pac.ReadOptions(
            column_names=names,
            autogenerate_column_names=names is None,
            use_threads=False,
            block_size=2 * block if latin else block,
        )
        with self._opened(file) as source:
            content = _Content(source, self._delimiter, latin=latin)
            try:
                parser = pac.open_csv(
                    content, reading, self._parsing(rejected, latin=latin), _AS_BYTES
                )
            except pa.ArrowInvalid as error:
                if "Empty CSV file" not in str(error):
                    raise
                with self._opened(file) as beginning:
                    if _is_blank(beginning):
                        return
                message = "there is no first line, but an open quote or a block of blank lines"
                raise pa.ArrowInvalid(message) from error
            rows = _with_rejected(map(pa.table, parser), rejected)
            chunks = _checked_end(rows, content)
            yield from self._named(map(_original, chunks) if latin else chunks)

    def _parsing(self, rejected: deque[pac.InvalidRow], *, latin: bool = False) -> pac.ParseOptions:
        def reject(row: pac.InvalidRow) -> str:
            text = row.text.encode("latin-1").decode(errors="replace") if latin else row.text
            rejected.append(row._replace(text=text))
            return "skip"

        return pac.ParseOptions(
            delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=reject
        )

    def _named(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Yield the chunks with column names and types. Raises UnicodeDecodeError for a name."""
        names = self._names
        for chunk in chunks:
            if isinstance(chunk, BadRow):
                yield chunk
            elif names is None:
                names = [column[0].as_py().decode() for column in chunk.columns]
                yield from self._cast(chunk.slice(1).rename_columns(names))
            else:
                yield from self._cast(chunk.rename_columns(names))

    def _cast(self, table: pa.Table) -> Iterator[Chunk]:
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
                yield BadRow(self._explained(error))
                start = row + 1
        yield self._typed(table.slice(start))

    def _typed(self, table: pa.Table) -> pa.Table:
        """Return a table of bytes cast to the inferred types. Raises ArrowInvalid."""
        columns = []
        for name, column in zip(table.column_names, table.columns, strict=True):
            texts, kind = column.cast(pa.string()), self._types.get(name, pa.string())
            columns.append(texts if pa.types.is_string(kind) else _with_nulls(texts).cast(kind))
        return pa.table(columns, table.column_names)

    def _explained(self, error: Exception) -> Exception:
        """Return the error of a row. If its text is invalid, the message has the encoding."""
        invalid = isinstance(error, UnicodeError) or "UTF8" in str(error)
        if not (self._encoding and invalid):
            return error
        return ValueError(f"its text is not valid in the encoding {self._encoding}")

    def rows_in(self, file: Location, size: int) -> int | None:
        return estimated_rows(file, size)

    def columns(self) -> list[str] | None:
        return list(self._types) or None


class _Content:
    """A text stream for pyarrow, without a UTF-8 byte order mark, and with a line end at the end of
    the file: without one, a file that is only a header would be empty to pyarrow. If `latin`, it
    has each byte as a character of Latin-1 in UTF-8."""

    closed = False

    def __init__(self, source: io.BufferedReader, delimiter: str, *, latin: bool) -> None:
        self._source = source
        self._latin = latin
        self._delimiter = delimiter.encode()
        self._held = b""
        self._end: deque[bytes] = deque(maxlen=3)  # a row spans two blocks and this line end

    def read(self, size: int) -> bytes:
        wanted = size // 2 if self._latin else size  # a character takes up to two bytes
        content = self._held + self._source.read(wanted - len(self._held))
        ended = len(content) < wanted
        # at the beginning of a block, pyarrow drops the second byte of a CRLF, also in a text
        self._held = b"\r" if content.endswith(b"\r") and not ended else b""
        content = content.removesuffix(self._held)
        if not self._end:
            content = content.removeprefix(codecs.BOM_UTF8)
            check_columns(content, self._delimiter)
        last = content or (self._end[-1] if self._end else b"\n")
        if ended and not last.endswith((b"\r", b"\n")):
            content += b"\n"
        if self._latin:
            content = content.decode("latin-1").encode()
        if content:
            self._end.append(content)
        return content

    def close(self) -> None:
        """Do nothing: the code that opened the stream closes it."""

    def has_open_quote(self, row: pa.Table) -> bool:
        """Return whether the quote of the last value of the last row is not closed. To pyarrow, the
        end of the file closes a quote, so all text after the quote becomes one value.

        In a file with one column, a quoted value of only line ends counts as not closed."""
        unclosed = b'"' + row.columns[-1][0].as_py().replace(b'"', b'""')
        end = b""
        for block in reversed(self._end):
            end = block[-1 - len(unclosed) + len(end) :] + end
            if len(end) > len(unclosed):
                break
        start = len(end) - len(unclosed)  # 1, or 0 at the beginning of the file
        if not end.endswith(unclosed):
            return False
        if row.num_columns > 1:
            return end[:start] == self._delimiter
        return end[:start] in (b"", b"\r", b"\n")


def _is_blank(source: io.BufferedReader) -> bool:
    """Return whether a stream has no text but line ends. pyarrow reports a block like this as
    empty, and also a file with an open quote in the header."""
    blocks = iter(lambda: source.read(BLOCK_BYTES), b"")
    return not any(block.strip(codecs.BOM_UTF8 + b"\r\n") for block in blocks)


def _with_rejected(tables: Iterator[pa.Table], rejected: deque[pac.InvalidRow]) -> Iterator[Chunk]:
    """Yield the rows, and a BadRow in the place of each rejected row with a wrong number of fields.

    The parser counts rows from 1 and includes the header. It reports a rejected row before the
    rows around it, by a varying number of rows. So the rejected rows after a table are used only
    with the next table: if the file is damaged there, they belong to the rest of the file."""
    number = 1
    for table in tables:
        while rejected and rejected[0].number < number + table.num_rows:
            bad = rejected.popleft()
            yield table.slice(0, bad.number - number)
            yield _bad_row(bad)
            table = table.slice(bad.number - number)  # noqa: PLW2901 - the rest of it
            number = bad.number + 1
        yield table
        number += table.num_rows
    yield from map(_bad_row, rejected)


def _original(chunk: Chunk) -> Chunk:
    """Return a chunk that was read as Latin-1 with its original bytes."""
    if isinstance(chunk, BadRow):
        return chunk
    columns = [
        pa.array([value.decode().encode("latin-1") for value in column.to_pylist()], pa.binary())
        for column in chunk.columns
    ]
    return pa.table(columns, chunk.column_names)


def _bad_row(row: pac.InvalidRow) -> BadRow:
    text = f"line has {row.actual_columns} fields instead of {row.expected_columns}"
    return BadRow(ValueError(f"{text}: {row.text[:200]}"))


def _checked_end(chunks: Iterator[Chunk], content: _Content) -> Iterator[Chunk]:
    """Yield the chunks that have rows. The last row becomes a BadRow if its quote is not closed."""
    last: Chunk | None = None
    try:
        for chunk in chunks:
            if size_of(chunk):
                if last is not None:
                    yield last
                last = chunk
    except ValueError:  # the next block is damaged
        if last is not None:
            yield last
        raise
    if isinstance(last, pa.Table) and content.has_open_quote(last.slice(last.num_rows - 1)):
        yield last.slice(0, last.num_rows - 1)
        yield BadRow(ValueError(f"a quote is opened but not closed, {_REST}"))
    elif last is not None:
        yield last


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
