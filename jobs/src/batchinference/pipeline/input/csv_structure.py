"""Finds the records in CSV text, and the records whose quotes are damaged.

A quote is damaged if it is not closed, or if text follows the quote that closes it. Only its line
is damaged if the lines after it are rows on their own. Otherwise they may be the text of a value,
so they are damaged up to the next line end that follows an even number of quotes.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from batchinference.pipeline.input.csv_dialect import Dialect, without_escapes
from batchinference.text import counted

NEXT_LINES = 8
"""Lines after a damaged quote that show whether they are rows: at least three quarters must be."""
SHOWN_BYTES = 80
WINDOW_BYTES = 1 << 18
"""Bytes whose quotes are examined at a time."""
MOST_STEPS = 64
"""Values after the last line end of a window that are examined one by one."""
_SHORT_VALUES = "If no value has line ends, set read.options.newlinesInValues: false"
_LINE_END = re.compile(rb"\r\n|\r|\n")
Positions = list[int] | np.ndarray


class Damage(NamedTuple):
    """Consecutive rows that cannot be read, and why."""

    problem: str
    rows: int = 1


class Fault(NamedTuple):
    """A problem with a line, and what to do about it."""

    problem: str
    line: bytes
    fix: str

    def damage(self, lines: int, size: int) -> Damage:
        """Return the damage if the fault affects so many lines and bytes."""
        extent = f"{counted(lines, 'line')}, {size} bytes"
        shown = self.line[:SHOWN_BYTES].decode(errors="replace").rstrip("\r\n")
        return Damage(f"{self.problem} ({extent} cannot be read): {shown}. {self.fix}", lines)


class NeedsMore(Exception):
    """The text after the end decides what the text before it means."""


def last_record_end(
    text: bytes | bytearray, begin: int, end: int, dialect: Dialect, *, ended: bool
) -> int | None:
    """Return the end of the last record in text[begin:end], which begins with a record; `begin` if
    no record is complete. `ended` says whether no text follows.

    Return None if the text has comments, or quotes that are not where they should be."""
    if dialect.comment and _comment(dialect).search(text, begin, end):
        return None
    half = not ended and text[end - 1] in b"\r" + dialect.quote  # of a CRLF or a doubled quote
    stop = end - half
    if not dialect.quote or text.find(dialect.quote, begin, stop) < 0:
        return end if ended else _line_start(text, begin, stop)
    values = np.frombuffer(text, np.uint8)[begin:stop]
    last, inside = begin, False
    # in windows: the positions of all quotes of a long row would take more memory than the row
    for start in range(0, len(values), WINDOW_BYTES):
        window, following = values[start:][:WINDOW_BYTES], values[start + WINDOW_BYTES :][:1]
        quotes = np.flatnonzero(window == dialect.quote[0])
        if not _are_regular(window, following, quotes, dialect, inside=inside):
            return None
        found = _record_start(text, begin + start, window, quotes, inside=inside)
        last = found if found > begin + start else last
        inside = (len(quotes) + inside) % 2 == 1
    if ended:
        return None if inside else end
    return last


def _are_regular(
    values: np.ndarray, following: np.ndarray, quotes: np.ndarray, dialect: Dialect, *, inside: bool
) -> bool:
    """Return whether each closing quote is followed by the end of a field or by another quote.
    `inside` says whether the text begins within quotes. `following` may have the byte after it."""
    closing = quotes[not inside :: 2] + 1
    if len(closing) and closing[-1] == len(values):
        closing = closing[:-1]
        if not _after_quotes(dialect).take(following).all():
            return False
    if not _after_quotes(dialect).take(values.take(closing)).all():
        return False
    return dialect.newlines_in_values or len(_within(values, quotes, inside=not inside)) == 0


def _within(values: np.ndarray, quotes: np.ndarray, *, inside: bool) -> np.ndarray:
    """Return the positions of the line ends before which there is an even number of quotes, or an
    odd one if the text begins `inside` of quotes."""
    line_ends = np.flatnonzero((values == ord("\n")) | (values == ord("\r")))
    found: np.ndarray = line_ends[np.searchsorted(quotes, line_ends) % 2 == inside]
    return found


@lru_cache
def _after_quotes(dialect: Dialect) -> np.ndarray:
    table = np.zeros(256, bool)
    table[list(dialect.boundaries + dialect.quote)] = True
    return table


def _record_start(
    text: bytes | bytearray, begin: int, values: np.ndarray, quotes: np.ndarray, *, inside: bool
) -> int:
    """Return the position after the last line end outside of quotes; `begin` if there is none.
    `values` is the text from `begin` on. `inside` says whether it begins within quotes."""
    index, stop = len(quotes), begin + len(values)
    if (index + inside) % 2:
        index -= 1
        stop = begin + int(quotes[index]) if index >= 0 else begin
    for _ in range(MOST_STEPS):
        after_value = begin + int(quotes[index - 1]) + 1 if index > 0 else begin
        if (start := _line_start(text, after_value, stop)) > after_value:
            return start
        index -= 2
        if index < 0:
            return begin
        stop = begin + int(quotes[index])
    outside = _within(values, quotes, inside=inside)
    return begin + int(outside[-1]) + 1 if len(outside) else begin


def _line_start(text: bytes | bytearray, begin: int, stop: int) -> int:
    """Return the position after the last line end in text[begin:stop]; `begin` if there is none."""
    last = max(text.rfind(b"\n", begin, stop), text.rfind(b"\r", begin, stop))
    return max(begin, last + 1)


@lru_cache
def _comment(dialect: Dialect) -> re.Pattern[bytes]:
    """Return the pattern of the beginning of a comment line."""
    return re.compile(rb"(?<![^\r\n])" + re.escape(dialect.comment))


@lru_cache
def header_pattern(dialect: Dialect) -> re.Pattern[bytes]:
    """Return a pattern that matches a record without its line end, or up to a damaged quote."""
    text = rb"[^%b]*+" % re.escape(dialect.boundaries)
    field = text
    if dialect.quote:
        inside = b"" if dialect.newlines_in_values else b"\r\n"
        field = rb"(?:%b%b|(?!%b)%b)" % (_quoted(dialect, inside), text, dialect.quote, text)
    return re.compile(rb"(?:%b(?:%b%b)*)?" % (field, re.escape(dialect.delimiter), field))


@lru_cache
def _row(dialect: Dialect, columns: int) -> re.Pattern[bytes]:
    """Return the pattern of a line that is a row on its own. In text without quotes around it, they
    must be in pairs, and not at its beginning or end."""
    quote = re.escape(dialect.quote)
    text = rb"[^%b]" % re.escape(dialect.boundaries + dialect.quote)
    plain = rb"%b*+(?:(?<=%b)%b%b*+%b%b++)*" % (text, text, quote, text, quote, text)
    field = rb"(?:%b%b|%b)" % (_quoted(dialect, b"\r\n"), _spaces(dialect), plain)
    return re.compile(
        rb"%b(?:%b%b){%d}" % (field, re.escape(dialect.delimiter), field, columns - 1)
    )


@lru_cache
def _field_end(dialect: Dialect) -> re.Pattern[bytes]:
    return re.compile(rb"%b(?:(?=[%b])|\Z)" % (_spaces(dialect), re.escape(dialect.boundaries)))


def _quoted(dialect: Dialect, excluded: bytes) -> bytes:
    quote = re.escape(dialect.quote)
    text = rb"[^%b%b]*+" % (quote, excluded)
    return rb"%b%b(?:%b%b%b)*%b" % (quote, text, quote, quote, text, quote)


def _spaces(dialect: Dialect) -> bytes:
    return rb"[%b]*+" % b" \t".replace(dialect.delimiter, b"")


def _doubled(quotes: Positions, number: int) -> int:
    """Return how many pairs of adjacent quotes follow, of which there is at least one. Many are
    counted at a time, because a long value may consist of them."""
    if isinstance(quotes, list):
        return 1
    pairs = quotes[number:][: WINDOW_BYTES // 2 * 2]
    pairs = pairs[: len(pairs) // 2 * 2].reshape(-1, 2)
    apart = np.flatnonzero(pairs[:, 1] != pairs[:, 0] + 1)
    return int(apart[0]) if len(apart) else len(pairs)


class Structure:
    """The records in text that begins with a record.

    `ended` says whether no text follows, and `full` whether no more text can be loaded."""

    def __init__(
        self, text: bytes, dialect: Dialect, columns: int, *, ended: bool, full: bool
    ) -> None:
        self.stop = 0
        """The end of the last record that is complete."""
        self.removed: list[tuple[int, int, Damage | None]] = []
        """Start and end of damaged records, and of comments (None)."""
        self.fault: Fault | None = None
        """Why it is unknown where the next record begins."""
        self._original, self._text = text, without_escapes(text, dialect)
        self._dialect, self._columns = dialect, columns
        self._ended, self._complete = ended, ended or full
        self._quotes, self._opening = self._find_quotes()
        try:
            self._scan()
        except NeedsMore:
            return

    def _find_quotes(self) -> tuple[Positions, Positions]:
        """Return the positions of all quotes, and of those at the start of a field."""
        found, opening = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
        values = np.frombuffer(self._text, np.uint8)
        for start in range(0, len(values) if self._dialect.quote else 0, WINDOW_BYTES):
            quotes = start + np.flatnonzero(values[start:][:WINDOW_BYTES] == self._dialect.quote[0])
            begins = np.isin(values[quotes - 1], list(self._dialect.boundaries)) | (quotes == 0)
            found.append(quotes.astype(np.int32))
            opening.append(quotes[begins].astype(np.int32))
        if len(values) > WINDOW_BYTES:  # a list would take nine times as much memory
            return np.concatenate(found), np.concatenate(opening)
        return np.concatenate(found).tolist(), np.concatenate(opening).tolist()

    def _scan(self) -> None:
        position = 0
        while not self.fault:
            number = bisect_left(self._opening, position)
            start = int(self._opening[number]) if number < len(self._opening) else len(self._text)
            if (comment := self._comment_before(start, position)) is not None:
                self.stop = comment
                position = self._remove(self._line_stop(comment), None)
                continue
            half = start == len(self._text) and not self._complete and self._text.endswith(b"\r")
            if (record := _line_start(self._text, position, start - half)) > position:
                self.stop = record
            if start == len(self._text):
                self.stop = start if self._ended else self.stop
                return
            end = self._closing(start)
            if end is not None and self._is_closed(start, end):
                position = end + 1
            else:
                position = self._damaged(start, end)

    def _comment_before(self, stop: int, position: int) -> int | None:
        if not self._dialect.comment:
            return None
        comment = _comment(self._dialect).search(self._text, position, stop)
        return comment.start() if comment else None

    def _remove(self, stop: int, damage: Damage | None) -> int:
        """Remove the text from the current record up to `stop`, where the next one begins."""
        self.removed.append((self.stop, stop, damage))
        self.stop = stop
        return stop

    def _line_stop(self, position: int) -> int:
        """Return the position after the line end that follows a position."""
        line_end = _LINE_END.search(self._text, position)
        stop = line_end.end() if line_end else len(self._text)
        if stop == len(self._text) and not self._ended and not self._text.endswith(b"\n"):
            raise NeedsMore
        return stop

    def _closing(self, start: int) -> int | None:
        """Return the position of the quote that closes the one at `start`; None if there is none.
        A doubled quote is a part of the value."""
        quotes, number = self._quotes, bisect_right(self._quotes, start)
        while number + 1 < len(quotes) and quotes[number + 1] == quotes[number] + 1:
            number += 2 * _doubled(quotes, number)
        if number == len(quotes) and not self._complete:
            raise NeedsMore
        return int(quotes[number]) if number < len(quotes) else None

    def _is_closed(self, start: int, end: int) -> bool:
        """Return whether the field of a quoted value ends after it, and on its line if it must."""
        field_end = _field_end(self._dialect).match(self._text, end + 1)
        if field_end and field_end.end() == len(self._text) and not self._complete:
            raise NeedsMore
        line = self._dialect.newlines_in_values or not _LINE_END.search(self._text, start, end)
        return bool(field_end and line)

    def _damaged(self, start: int, end: int | None) -> int:
        """Remove the line with the damaged quote at `start`, and return where the next record
        begins. Sets `fault` if that is unknown."""
        stop = self._line_stop(start)
        fault = self._fault(end, stop)
        quotes = bisect_left(self._quotes, stop) - bisect_left(self._quotes, self.stop)
        alone = quotes % 2 == 0 or not self._dialect.newlines_in_values
        if alone or self._rows_follow(stop, end or 0):
            return self._remove(stop, fault.damage(1, stop - self.stop))
        self.fault = fault._replace(fix=f"{_SHORT_VALUES}. {fault.fix}")
        return stop

    def _rows_follow(self, position: int, end: int) -> bool:
        """Return whether the lines from a position on, and that of a later quote, are rows."""
        last = _line_start(self._text, position, max(position, end))  # the line of `end`
        limit = last if position < last and self._columns > 1 else len(self._text)
        lines = self._lines(position, limit)
        if self._columns == 1:  # any line without quotes is a row
            lines += self._lines(last, len(self._text), 1)
            if lines and not any(self._dialect.quote in line for line in lines):
                return False
        row = _row(self._dialect, self._columns)
        rows = sum(bool(row.fullmatch(line)) for line in lines)
        return 4 * rows >= 3 * len(lines)

    def _lines(self, position: int, limit: int, number: int = NEXT_LINES) -> list[bytes]:
        """Return the first lines between two positions, without blank ones."""
        lines: list[bytes] = []
        while position < limit and len(lines) < number:
            stop = self._line_stop(position)
            lines += [line] if (line := self._text[position:stop].rstrip(b"\r\n")) else []
            position = stop
        if len(lines) < number and limit == len(self._text) and not self._complete:
            raise NeedsMore
        return lines

    def _fault(self, end: int | None, stop: int) -> Fault:
        line = self._original[self.stop : stop]
        closed = end is not None and end < stop
        problem = "text follows a quote that closes a value" if closed else "a quote is not closed"
        fix = 'If quotes are part of the values, double them, or set read.options.quote: ""'
        if not self._dialect.escape and b"\\" + self._dialect.quote in line:
            fix = 'If backslashes escape quotes, set read.options.escape: "\\\\"'
        return Fault(problem, line, fix)
