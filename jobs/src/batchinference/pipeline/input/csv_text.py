"""Divides CSV text into blocks of whole records.

To a parser, a quote that is not closed begins a value that extends to the next quote, or to the end
of the file. So a parser gets only blocks in which each quote is closed. A damaged record is
replaced by a marker line with too many fields, which the parser rejects in its place.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import replace
from io import BufferedIOBase
from typing import NamedTuple

import numpy as np

from batchinference.pipeline.input.csv_dialect import (
    Dialect,
    for_parser,
    named_delimiter,
    without_escapes,
)
from batchinference.pipeline.input.csv_structure import (
    SHOWN_BYTES,
    Damage,
    Fault,
    Structure,
    header_pattern,
    last_record_end,
)

BLOCK_BYTES = 1 << 21
FULL_BYTES = 1 << 21
"""Bytes of a row that is too long in which the end of a damaged value is searched."""
FAULTY_BYTES = 1 << 12
"""Bytes that are examined after a fault; twice as many after each block without one."""
RAISE = "Raise read.options.maxRowBytes, or shorten the row"
NEXT_BYTES = 1 << 16
"""Bytes after damaged text in which a quote shows whether they are inside of a value."""
MARKER = "\0removed"
"""The beginning of a line that stands for a damaged record or a comment."""
_LINE_END = re.compile(rb"\r\n|\r|\n")


class Block(NamedTuple):
    """Whole records, and what each of its marker lines stands for: damage, or a comment (None).

    The content is valid until the next block is read."""

    content: bytes | memoryview
    removed: list[Damage | None]


class CsvText:
    """CSV text that is read from a stream of UTF-8. `row_bytes` is the maximum size of a row."""

    def __init__(self, source: BufferedIOBase, dialect: Dialect, row_bytes: int) -> None:
        self.dialect = dialect
        self.skipped_lines = 0
        """The number of lines that `begin` has left out: those to skip, and comments."""
        self._source, self._row_bytes = source, row_bytes
        self._store = bytearray(2 * BLOCK_BYTES)
        self._begin = self._end = self._moved = 0
        self._ended = False

    @property
    def position(self) -> int:
        """The number of bytes before the unread text."""
        return self._moved + self._begin

    def begin(self, skip_lines: int, *, chosen: bool) -> None:
        """Remove a byte order mark, a line such as `sep=;`, the first lines, blank lines and
        comments. Raises ValueError if the line names another delimiter than the `chosen` one."""
        self._load(BLOCK_BYTES)
        if self._store.startswith(codecs.BOM_UTF8, 0, self._end):
            self._begin = len(codecs.BOM_UTF8)
        named = named_delimiter(self._store, self._begin, self._end)
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
        while self._load(BLOCK_BYTES) and self._store[self._begin] in ignored:
            self.skipped_lines += self._store[self._begin] in self.dialect.comment
            self._skip_line()

    def header(self) -> bytes | Damage:
        """Remove the first record, and return it as the parser takes it; empty if there is none."""
        size = BLOCK_BYTES
        while True:
            text = self._unread(size)
            record = header_pattern(self.dialect).match(without_escapes(text, self.dialect))
            stop = record.end() if record else 0
            if stop < len(text) or self._ended or size >= self._row_bytes:
                break
            size *= 2
        if stop < len(text) and text[stop] not in b"\r\n":
            line = _LINE_END.split(text, maxsplit=1)[0]
            return self.rest("the header has a quote that is not closed", line, "Close it")
        if not self._is_all(len(text)) and stop == len(text):
            return self.rest(self._too_long, text, RAISE)
        self._begin += stop
        return for_parser(text[:stop], self.dialect)

    def rest(self, problem: str, header: bytes, fix: str) -> Damage:
        """Remove all text, and return it as damage: the header has a problem."""
        lines, size = self._drop(0)
        damage = Fault(problem, header, fix).damage(lines, size)
        return damage._replace(rows=max(1, lines - 1))

    def blocks(self, columns: int) -> Iterator[Block | Damage]:
        """Yield the remaining records. `columns` is the number of fields of a record."""
        size = BLOCK_BYTES
        while self._load(size):
            structure, stop = self._records(columns, size)
            if stop:
                yield self._block(structure.removed if structure else [], stop, columns)
                self._begin += stop
            size = min(2 * size, BLOCK_BYTES)
            if structure and structure.fault:
                yield structure.fault.damage(*self._drop(columns))
                # another fault may follow soon, and the text behind it would be read for nothing
                size = min(FAULTY_BYTES, BLOCK_BYTES)

    def _records(self, columns: int, size: int) -> tuple[Structure | None, int]:
        """Return the size of the next records, in about `size` bytes, and, if they are irregular,
        their structure."""
        while True:
            unread = min(self._load(size), size)
            ended = self._is_all(unread)
            begin: int = self._begin
            text: bytes | bytearray = self._store
            if self.dialect.escape:
                begin, text = 0, without_escapes(self._unread(size), self.dialect)
            stop = last_record_end(text, begin, begin + unread, self.dialect, ended=ended)
            if stop is not None and stop > begin:
                return None, stop - begin
            for full in (False, True):
                if unread >= self._row_bytes if full else stop is None:
                    structure = self._structure(unread, columns, ended=ended, full=full)
                    if structure.stop or structure.fault:
                        return structure, structure.stop
            size = min(2 * size, max(size, self._row_bytes))

    def _structure(self, size: int, columns: int, *, ended: bool, full: bool) -> Structure:
        """Return the structure of `size` bytes, or of the first ones if it does not depend on the
        others. If the text is `full`, quotes after FULL_BYTES belong to a row that is too long."""
        view = min(size, FULL_BYTES) if full else size
        length = 0 if full and self._has_quote(view, size) else min(view, BLOCK_BYTES)
        while True:
            end, last = ended and length == size, length in (0, view)
            structure = Structure(
                self._unread(length), self.dialect, columns, ended=end, full=full and last
            )
            if last or structure.stop or structure.fault:
                break
            length = min(2 * length, view)
        if full and not structure.stop and not structure.fault:
            structure.fault = Fault(self._too_long, self._unread(SHOWN_BYTES), RAISE)
        return structure

    def _has_quote(self, start: int, stop: int) -> bool:
        """Return whether there is a quote between two positions of the unread text."""
        first, last = self._begin + start, self._begin + stop
        return bool(self.dialect.quote) and self._store.find(self.dialect.quote, first, last) >= 0

    @property
    def _too_long(self) -> str:
        return f"a row has more bytes than maxRowBytes ({self._row_bytes})"

    def _block(
        self, removed: list[tuple[int, int, Damage | None]], size: int, columns: int
    ) -> Block:
        if not removed and not self.dialect.escape:
            return Block(memoryview(self._store)[self._begin : self._begin + size], [])
        text, done, parts = self._unread(size), 0, []
        marker = MARKER.encode() + self.dialect.delimiter * columns + b"\n"
        for start, stop, _ in removed:
            parts += [for_parser(text[done:start], self.dialect), marker]
            done = stop
        parts.append(for_parser(text[done:], self.dialect))
        return Block(b"".join(parts), [damage for _, _, damage in removed])

    def _drop(self, columns: int) -> tuple[int, int]:
        """Remove the text up to the first line end after an even number of quotes, or all text if
        there are no columns. Return how many lines and bytes it has."""
        lines = size = quotes = 0
        complete, window = True, min(FAULTY_BYTES, BLOCK_BYTES)
        while self._load(window):
            text = without_escapes(self._unread(window), self.dialect)
            window = min(2 * window, BLOCK_BYTES)
            if not self._is_all(len(text)):
                text = text.removesuffix(b"\r") or text  # it may be half of a line end
            values = np.frombuffer(text, np.uint8)
            feeds = np.append(values[1:] == ord("\n"), False)
            line_ends = np.flatnonzero((values == ord("\n")) | ((values == ord("\r")) & ~feeds))
            marks = np.flatnonzero(values == (self.dialect.quote or b"\0")[0])
            outside = line_ends[(np.searchsorted(marks, line_ends) + quotes) % 2 == 0]
            ends = bool(columns and len(outside))
            stop = int(outside[0]) + 1 if ends else len(text)
            lines += int(np.searchsorted(line_ends, stop))
            complete = text[stop - 1] in b"\r\n"
            size, quotes, self._begin = size + stop, quotes + len(marks), self._begin + stop
            if ends and (columns > 1 or self._is_outside()):
                break
            quotes = 1 if ends else quotes
        return lines + (not complete), size

    def _is_outside(self) -> bool:
        """Return whether the next quote opens a value at the beginning of a line. In text of one
        column, each line is a row, also if it is a part of a value."""
        self._load(NEXT_BYTES)
        text = without_escapes(self._unread(NEXT_BYTES), self.dialect)
        quote = text.find(self.dialect.quote)
        return not self.dialect.quote or quote < 1 or text[quote - 1] in b"\r\n"

    def _load(self, size: int) -> int:
        """Load text until `size` bytes are unread or the text ends. Return how many are unread."""
        unread = self._end - self._begin
        if unread < size and not self._ended:
            if self._begin + size > len(self._store):
                store = bytearray(size) if size > len(self._store) else self._store
                store[:unread] = self._store[self._begin : self._end]
                self._moved += self._begin
                self._store, self._begin, self._end = store, 0, unread
            stop = self._begin + size
            self._end += self._source.readinto(memoryview(self._store)[self._end : stop])
            self._ended = self._end < stop
        return self._end - self._begin

    def _is_all(self, size: int) -> bool:
        """Return whether no text follows so many unread bytes."""
        return self._ended and self._begin + size == self._end

    def _unread(self, size: int) -> bytes:
        """Return a copy of at most `size` unread bytes."""
        return bytes(memoryview(self._store)[self._begin : min(self._begin + size, self._end)])

    def _skip_line(self) -> None:
        while self._load(BLOCK_BYTES):
            line_end = _LINE_END.search(self._store, self._begin, self._end)
            if line_end and (self._ended or line_end.end() < self._end):
                self._begin = line_end.end()
                return
            # the line may end in the text that follows, or this may be half of a CRLF
            self._begin = line_end.start() if line_end else self._end
