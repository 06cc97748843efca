"""Divides CSV text into blocks of complete records. A damaged quote then fails few lines.

A quote is damaged if it is not closed, or if text follows the quote that closes it. For pyarrow, an
unclosed quote begins a value that extends to the next quote or the end of the file. Therefore, a
marker line replaces each line with a damaged quote. A marker line has too many fields, so pyarrow
passes it to the handler of invalid rows, in the order of lines."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from io import BufferedIOBase
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pac

from batchinference.pipeline.input.csv_dialect import (
    DELIMITER_LINE,
    Dialect,
    for_parser,
    without_escapes,
)
from batchinference.pipeline.storage.location import MissingEnd
from batchinference.text import counted

BLOCK_BYTES = 1 << 21
RECORDS_AT_ONCE = 64
SHOWN_BYTES, NEAR_BYTES = 80, 1 << 16
"""Bytes of a line in a message, and bytes after a damaged line that are searched for a quote."""
RAISE_LIMIT = "Raise read.options.maxRowBytes, or shorten the row"
SHOWN_CHARACTERS = 200
"""Maximum characters of a line with a wrong number of fields in a message."""
MARKER = "\0removed"
"""The beginning of a marker line, which replaces a damaged line or a comment."""
LINE_END = re.compile(rb"\r\n|\r|\n")
_SHORT_VALUES = "If no value has line ends, set read.options.newlinesInValues: false"


class Damage(NamedTuple):
    """Consecutive rows that cannot be read, and why."""

    problem: str
    rows: int = 1


class Fault(NamedTuple):
    """A problem with a line, and its fix."""

    problem: str
    line: bytes
    fix: str

    def damage(self, lines: int, size: int) -> Damage:
        """Return the damage of this fault, which makes `lines` lines of `size` bytes unreadable."""
        extent = f"{counted(lines, 'line')}, {size} bytes"
        shown = self.line[:SHOWN_BYTES].decode(errors="replace").rstrip("\r\n")
        return Damage(f"{self.problem} ({extent} cannot be read): {shown}. {self.fix}", lines)


class Block(NamedTuple):
    """Complete records. `removed` has the damage of each marker line (None for a comment)."""

    content: bytes | memoryview
    removed: list[Damage | None]


class _Records(NamedTuple):
    """The records at the beginning of a text, before the position `stop`. `removed` are the lines
    to replace: start, end, and damage (None for a comment). If there is a `fault`, it is unknown
    where the next record begins."""

    stop: int
    removed: list[tuple[int, int, Damage | None]]
    fault: Fault | None = None


class _Patterns(NamedTuple):
    record: re.Pattern[bytes]
    """A record with its line end. `records` matches up to RECORDS_AT_ONCE records."""
    records: re.Pattern[bytes]
    part: re.Pattern[bytes]
    """The beginning of a record that may continue after the end of the text."""
    fields: re.Pattern[bytes]
    """The valid fields at the beginning of a record."""
    quoted: re.Pattern[bytes]
    """A value in quotes."""
    comment: re.Pattern[bytes]


@lru_cache
def _patterns(dialect: Dialect) -> _Patterns:
    # possessive loops with alternatives do not work before Python 3.11.5
    quote, delimiter = re.escape(dialect.quote), re.escape(dialect.delimiter)
    comment = re.escape(dialect.comment)
    field = opened = quoted = rb"[^%b]*+" % re.escape(dialect.boundaries)
    if quote:
        inside = rb"[^%b%b]*+" % (quote, b"" if dialect.newlines_in_values else b"\r\n")
        opened = rb"%b%b(?:%b%b%b)*+" % (quote, inside, quote, quote, inside)
        quoted = opened + quote
        spaces = rb"[%b]*+" % b" \t".replace(dialect.delimiter, b"")
        field = rb"(?:%b%b|(?!%b)%b)" % (quoted, spaces, quote, field)
    fields = rb"(?:%b%b)*" % (field, delimiter)
    no_comment = rb"(?!%b)" % comment if comment else b""
    record = rb"%b%b%b(?:\r\n|\r|\n)" % (no_comment, fields, field)
    return _Patterns(
        re.compile(record),
        re.compile(rb"(?:%b){0,%d}" % (record, RECORDS_AT_ONCE)),
        re.compile(rb"%b(?:%b|%b)\Z" % (fields, opened, field)),
        re.compile(fields),
        re.compile(quoted),
        re.compile(rb"(?<![^\r\n])" + comment),
    )


def _records(text: bytes, dialect: Dialect, columns: int, *, ended: bool, one: bool) -> _Records:
    """Return the records at the beginning of a text without escapes; with `one`, only the first.
    `ended` tells whether the text is the rest of the file. A record has `columns` fields."""
    if not one and (stop := _regular_end(text, dialect, ended=ended)):
        return _Records(stop, [])
    size, at = len(text), 0
    text += b"\n" if ended else b""
    removed: list[tuple[int, int, Damage | None]] = []
    patterns = _patterns(dialect)
    while at < len(text):
        match = (patterns.record if one else patterns.records).match(text, at)
        if match and match.end() > at:
            at = match.end()
            if one:
                break
            continue
        line = _irregular_line(text, at, size, dialect, ended=ended)
        if not line:
            break
        begin, (at, fault) = at, line
        if fault and columns == 1 and _may_continue(text[begin:at], dialect):
            return _Records(begin, removed, fault._replace(fix=f"{_SHORT_VALUES}. {fault.fix}"))
        stop = _value_end(text, begin, at, dialect, ended=ended) if fault else at
        if stop is None:
            at = begin
            break
        removed += _removed_lines(text, begin, at, min(stop, size), fault)
        at = stop
        if one:
            break
    return _Records(min(at, size), removed)


def _irregular_line(
    text: bytes, at: int, size: int, dialect: Dialect, *, ended: bool
) -> tuple[int, Fault | None] | None:
    """Return the end and the fault (None for a comment) of the line at `at`, which is no valid
    record. Return None if the line may continue after the text."""
    patterns = _patterns(dialect)
    comment = dialect.comment and text.startswith(dialect.comment, at)
    if not (ended or comment) and patterns.part.match(text, at):
        return None
    fields = patterns.fields.match(text, at)
    line_end = _line_end(text, fields.end() if fields and not comment else at, ended=ended)
    if line_end is None:
        return None
    stop = min(line_end, size)
    return stop, None if comment else _fault(text, at, stop, dialect)


def _line_end(text: bytes, at: int, *, ended: bool) -> int | None:
    """Return the end of the line at position `at`. None if the line end, or the second half of a
    CRLF, may be in the text that follows."""
    line_end = LINE_END.search(text, at)
    if not line_end or (not ended and line_end.end() == len(text) and text.endswith(b"\r")):
        return None
    return line_end.end()


def _may_continue(line: bytes, dialect: Dialect) -> bool:
    """Return whether a value that this damaged line leaves open may continue on the next lines."""
    return dialect.newlines_in_values and line.count(dialect.quote) % 2 == 1


def _value_end(text: bytes, begin: int, at: int, dialect: Dialect, *, ended: bool) -> int | None:
    """Return the end of the value that the damaged line from `begin` to `at` leaves open. If the
    next quote closes a value, as in `x, y"`, this is the end of the line with this quote. If not,
    as in `x,"y`, this is `at`. Return None if the text that follows decides."""
    if not _may_continue(text[begin:at], dialect):
        return at
    quote = text.find(dialect.quote, at, at + NEAR_BYTES)
    if quote < 0 or quote + 1 == len(text):
        return at if ended or len(text) - at >= NEAR_BYTES else None
    if text[quote - 1] in dialect.boundaries or text[quote + 1] not in dialect.boundaries:
        return at
    return _line_end(text, quote, ended=ended)


def _removed_lines(
    text: bytes, begin: int, at: int, stop: int, fault: Fault | None
) -> Iterator[tuple[int, int, Damage | None]]:
    """Yield start, end and damage (None for a comment) of each line from `begin` to `stop`. The
    first line ends at `at`."""
    ends = [at, *(each.end() for each in LINE_END.finditer(text, at, stop)), stop]
    for start, end in pairwise([begin, *dict.fromkeys(ends)]):
        yield start, end, fault and fault.damage(1, end - start)


def _fault(text: bytes, begin: int, stop: int, dialect: Dialect) -> Fault:
    line = text[begin:stop]
    fields = _patterns(dialect).fields.match(line)
    closed = fields and _patterns(dialect).quoted.match(line, fields.end())
    problem = "text follows a quote that closes a value" if closed else "a quote is not closed"
    fix = 'If quotes are part of the values, double them, or set read.options.quote: ""'
    if not dialect.escape and b"\\" + dialect.quote in line:
        fix = 'If backslashes escape quotes, set read.options.escape: "\\\\"'
    return Fault(problem, line, fix)


def _regular_end(text: bytes, dialect: Dialect, *, ended: bool) -> int | None:
    """Return the end of the last complete record; 0 if no record is complete. None if the text has
    comments or damaged quotes, for which the slower patterns are needed."""
    if dialect.comment and _patterns(dialect).comment.search(text):
        return None
    if not dialect.quote or dialect.quote not in text:
        return len(text) if ended else max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
    is_cut = not ended and text.endswith(dialect.quote)  # it may be half of a doubled quote
    values = np.frombuffer(text, np.uint8, len(text) - is_cut)
    quotes = np.flatnonzero(values == dialect.quote[0])
    closing = quotes[1::2] + 1
    before = values[np.maximum(quotes[::2] - 1, 0)]
    after = values[closing[closing < len(values)]]
    if (before.tobytes() + after.tobytes()).strip(dialect.boundaries + dialect.quote):
        return None
    line_ends = np.flatnonzero((values == ord("\n")) | (values == ord("\r")))
    outside = line_ends[np.searchsorted(quotes, line_ends) % 2 == 0]
    if not dialect.newlines_in_values and len(outside) < len(line_ends):
        return None
    if ended:
        return None if len(quotes) % 2 else len(text)
    return int(outside[-1]) + 1 if len(outside) else 0


class CsvText:
    """CSV text from a stream of UTF-8. Reads `block_bytes` at once. Rows have up to `row_bytes`."""

    def __init__(
        self, source: BufferedIOBase, dialect: Dialect, row_bytes: int, block_bytes: int
    ) -> None:
        self.dialect = dialect
        self.skipped_lines = 0
        """The number of lines of `skipLines`, and of comments, that `begin` has removed."""
        self._source, self._row_bytes, self._block_bytes = source, row_bytes, block_bytes
        self._text, self._begin, self._ended = b"", 0, False
        self._missing_end: MissingEnd | None = None
        """The error if the end of the file is missing after the loaded text."""

    @property
    def beginning(self) -> bytes:
        """The first NEAR_BYTES bytes of the text that is still unread."""
        return self._unread(NEAR_BYTES)

    def begin(self, skip_lines: int, *, chosen: bool) -> None:
        """Remove what precedes the header: a byte order mark, a line such as `sep=;`, `skip_lines`
        lines, blank lines and comments. `chosen` tells whether the user has set the delimiter.
        Raises ValueError if the line `sep=` names another delimiter than the user has set."""
        self._load(self._block_bytes)
        self._text = self._text.removeprefix(codecs.BOM_UTF8)
        line = DELIMITER_LINE.match(self._text)
        named = line[1] if line else b""
        if named and chosen and named != self.dialect.delimiter:
            raise ValueError(
                f"read.options.delimiter: the first line names {named.decode()!r}. Remove the "
                "option, or the line"
            )
        if named:
            self.dialect = replace(self.dialect, delimiter=named)
        self.skipped_lines = max(0, skip_lines - bool(named))
        for _ in range(max(skip_lines, 1 if named else 0)):
            self._skip_line()
        ignored = b"\r\n" + self.dialect.comment
        while self._load(self._block_bytes) and self._text[self._begin] in ignored:
            self.skipped_lines += self._text[self._begin] in self.dialect.comment
            self._skip_line()

    def header(self) -> bytes | Damage:
        """Remove the header line, and return it in the form of `for_parser`; empty if there is no
        text. If the header is damaged, return the rest of the file as damage."""
        size = self._block_bytes
        while self._load(size):
            text = self._unread(size)
            plain, ended = without_escapes(text, self.dialect), self._is_all(text)
            records = _records(plain, self.dialect, 1, ended=ended, one=True)
            if records.removed or records.fault:
                line = LINE_END.split(text, maxsplit=1)[0]
                return self.rest("the header has a quote that is not closed", line, "Close it")
            if records.stop:
                header = text[: records.stop].rstrip(b"\r\n")
                self._begin += len(header)
                return for_parser(header, self.dialect)
            self._check_end()
            if size >= self._row_bytes:
                return self.rest(self._too_long, text, RAISE_LIMIT)
            size *= 2
        return b""

    def rest(self, problem: str, header: bytes, fix: str) -> Damage:
        """Remove the rest of the file, and return it as damage: `problem` is about `header`."""
        lines, size = self._drop(all_text=True)
        return Fault(problem, header, fix).damage(lines, size)._replace(rows=max(1, lines - 1))

    def blocks(self, columns: int) -> Iterator[Block | Damage]:
        """Yield the remaining records in blocks, and damage. A record has `columns` fields."""
        size = self._block_bytes
        while self._load(size):
            text = self._unread(size)
            plain, ended = without_escapes(text, self.dialect), self._is_all(text)
            one = size > self._block_bytes
            stop, removed, fault = _records(plain, self.dialect, columns, ended=ended, one=one)
            if stop:
                yield self._block(text[:stop] if removed else text, stop, removed, columns)
                self._begin += stop
            else:
                self._check_end()
            if fault:
                yield fault.damage(*self._drop(all_text=True))
            elif not stop and size >= self._row_bytes:
                fault = Fault(self._too_long, text, RAISE_LIMIT)
                yield fault.damage(*self._drop(all_text=False))
            size = self._block_bytes if stop or size >= self._row_bytes else 2 * size
        self._check_end()

    @property
    def _too_long(self) -> str:
        return f"a row has more bytes than maxRowBytes ({self._row_bytes})"

    def _block(
        self, text: bytes, stop: int, removed: list[tuple[int, int, Damage | None]], columns: int
    ) -> Block:
        if not removed and not self.dialect.escape:
            return Block(memoryview(text)[:stop], [])
        done, parts = 0, []
        marker = MARKER.encode() + self.dialect.delimiter * columns + b"\n"
        for start, end, _ in removed:
            parts += [for_parser(text[done:start], self.dialect), marker]
            done = end
        parts.append(for_parser(text[done:stop], self.dialect))
        return Block(b"".join(parts), [damage for _, _, damage in removed])

    def _drop(self, *, all_text: bool) -> tuple[int, int]:
        """Remove a record that cannot be read, or the rest of the file. Return the numbers of
        removed lines and bytes. If values can contain line ends, the record ends at the first line
        end after an even number of quotes."""
        lines = size = quotes = 0
        complete, quote = True, self.dialect.quote if self.dialect.newlines_in_values else b""
        while self._load(self._block_bytes):
            text, at = without_escapes(self._unread(self._block_bytes), self.dialect), 0
            if not self._is_all(text):
                text = text.removesuffix(b"\r") or text  # this may be half of a CRLF
            for line_end in LINE_END.finditer(text):
                quotes += text.count(quote, at, line_end.end()) if quote else 0
                at, lines = line_end.end(), lines + 1
                if not all_text and quotes % 2 == 0:
                    self._begin += at
                    return lines, size + at
            quotes += text.count(quote, at) if quote else 0
            complete = at == len(text)
            size, self._begin = size + len(text), self._begin + len(text)
        self._check_end()
        return lines + (not complete), size

    def _load(self, size: int) -> int:
        """Load text until `size` bytes are unread or it ends. Return the number of unread bytes."""
        unread = len(self._text) - self._begin
        if unread < size and not self._ended and self._missing_end is None:
            parts = self._parts(size - unread)
            self._text, self._begin = b"".join([self._text[self._begin :], *parts]), 0
        return len(self._text) - self._begin

    def _parts(self, size: int) -> Iterator[bytes]:
        """Yield the next `size` bytes in parts, or fewer if the text ends."""
        while size > 0 and not self._ended:
            try:
                part = self._source.read1(size)
            except MissingEnd as error:
                self._missing_end = error
                return
            self._ended = not part
            size -= len(part)
            yield part

    def _check_end(self) -> None:
        """Raise MissingEnd if the end of the file is missing. Called if the rest of the loaded text
        is not a complete line or record."""
        if self._missing_end is not None:
            raise self._missing_end

    def _is_all(self, text: bytes) -> bool:
        """Return whether this unread text is the rest of the file."""
        return self._ended and self._begin + len(text) == len(self._text)

    def _unread(self, size: int) -> bytes:
        """Return at most `size` unread bytes."""
        return self._text[self._begin : self._begin + size]

    def _skip_line(self) -> None:
        while self._load(self._block_bytes):
            line_end = LINE_END.search(self._text, self._begin)
            if line_end and (self._ended or line_end.end() < len(self._text)):
                self._begin = line_end.end()
                return
            self._check_end()
            # the line may end in the text that follows, or this may be half of a CRLF
            self._begin = line_end.start() if line_end else len(self._text)


class Rejected(NamedTuple):
    """A line that is not a row: the number of rows before, and its damage (None for a comment)."""

    row: int
    damage: Damage | None


class Rows(NamedTuple):
    """The rows of a block, with values as bytes, and the lines that are not rows."""

    table: pa.Table
    rejected: list[Rejected]


def read_header(text: CsvText, encoding: str, fix: str) -> list[str] | Damage:
    """Remove the header from the text. Return its column names (none without text), or damage. A
    column without a name gets a name from its position. `fix` is the advice if the header is
    invalid in `encoding`."""
    header = text.header()
    if isinstance(header, Damage) or not header:
        return header or []
    block = Block(header + b"\n", [])  # without a line end, pyarrow sees no line
    columns = _parse(block, 0, text.dialect).table.num_columns
    table = _parse(block, columns, text.dialect).table
    try:
        names = [column[0].as_py().decode() for column in table.columns]
    except UnicodeDecodeError:
        return text.rest(f"the header is not valid in the encoding {encoding}", header, fix)
    return [name or f"column_{number}" for number, name in enumerate(names, 1)]


def parse_rows(block: Block, columns: int, dialect: Dialect) -> Rows:
    """Return the rows of a block."""
    try:
        return _parse(block, columns, dialect)
    except pa.ArrowInvalid:
        # pyarrow cannot skip a line with a wrong number of fields if the line is not UTF-8. So all
        # lines become UTF-8: each byte becomes a character of Latin-1
        latin = bytes(block.content).decode("latin-1").encode()
        table, rejected = _parse(block._replace(content=latin), columns, dialect, latin=True)
        original = [
            pa.array([text.decode().encode("latin-1") for text in column.to_pylist()], pa.binary())
            for column in table.columns
        ]
        return Rows(pa.table(original, table.column_names), rejected)


def parse_sample(text: CsvText, columns: int) -> pa.Table:
    """Return all valid rows of a text, with values as bytes."""
    blocks = (block for block in text.blocks(columns) if isinstance(block, Block))
    empty = pa.table([pa.array([], pa.binary())] * columns, _names(columns))
    return pa.concat_tables([empty, *(parse_rows(b, columns, text.dialect).table for b in blocks)])


def _parse(block: Block, columns: int, dialect: Dialect, *, latin: bool = False) -> Rows:
    """Return the rows of a block. If `columns` is 0, the first line decides how many columns there
    are. `latin` tells that each byte of the text was decoded as Latin-1."""
    removed, rejected = iter(block.removed), list[Rejected]()

    def reject(row: pac.InvalidRow) -> str:
        if row.text.startswith(MARKER):
            damage = next(removed, None)
        else:
            damage = _field_count_damage(row, dialect, latin=latin)
        rejected.append(Rejected(row.number - 1 - len(rejected), damage))
        return "skip"

    reading = pac.ReadOptions(
        column_names=_names(columns) or None,
        autogenerate_column_names=not columns,
        use_threads=False,
        block_size=len(block.content) + 1,
    )
    parsing = pac.ParseOptions(
        delimiter=dialect.delimiter.decode(),
        quote_char=dialect.quote.decode() or False,
        escape_char=dialect.escape.decode() or False,
        invalid_row_handler=reject,
    )
    # bytes, because an invalid text would make its block fail
    as_bytes = pac.ConvertOptions(column_types=dict.fromkeys(_names(columns), pa.binary()))
    content = pa.BufferReader(block.content)
    return Rows(pac.read_csv(content, reading, parsing, as_bytes), rejected)


def _names(columns: int) -> list[str]:
    return [f"f{number}" for number in range(columns)]


def _field_count_damage(row: pac.InvalidRow, dialect: Dialect, *, latin: bool) -> Damage:
    delimiter, quote = dialect.delimiter.decode(), dialect.quote.decode()
    text = row.text.encode("latin-1").decode(errors="replace") if latin else row.text
    fields = f"line has {counted(row.actual_columns, 'field')} instead of {row.expected_columns}"
    problem = f"{fields}: {text[:SHOWN_CHARACTERS]}"
    if quote and f"{delimiter} {quote}" in text:
        problem += ". A quote after a space is a part of the text. Remove the space"
    return Damage(problem)
