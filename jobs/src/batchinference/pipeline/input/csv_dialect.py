"""Describes the dialect of CSV text (delimiter, quote, escape), and translates escapes for pyarrow.

If `\\` is the escape character, pyarrow reads `\\n` as `n`. Exports without quotes (MySQL,
PostgreSQL, Hive) mean a line feed by `\\n`. Exports with quotes (Spark) mean a backslash and an
`n`, because they escape only special characters. In all exports, a field `\\N` is null."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

NULL = b"\xffN"
"""The value that replaces a null field. No other field has it: `for_parser` replaces `\\xff`."""
_MEANINGS = np.arange(256, dtype=np.uint8)
_MEANINGS[list(b"0bnrtZ")] = list(b"\0\b\n\r\t\x1a")
"""Maps an escaped byte to the byte that it means in text without quotes."""
_LF, _CR = b"\n\r"
DELIMITER_LINE = re.compile(rb'"?sep=([\t -~])"?(?=[\r\n]|\Z)', re.IGNORECASE)
"""Matches a first line that names the delimiter for Excel, such as `sep=;`."""


@dataclass(frozen=True)
class Dialect:
    """How CSV text is written. Each character is a single byte, or empty if the text has none."""

    delimiter: bytes = b","
    quote: bytes = b'"'
    escape: bytes = b""
    comment: bytes = b""
    newlines_in_values: bool = True

    @property
    def boundaries(self) -> bytes:
        """The characters that end a field."""
        return self.delimiter + b"\r\n"


def without_escapes(text: bytes, dialect: Dialect) -> bytes:
    """Return text of the same length in which escape characters and escaped characters are NUL. So
    each quote, delimiter and line end that remains in the result has its special meaning."""
    if not dialect.escape:
        return text
    values = np.frombuffer(text, np.uint8).copy()
    escapes = _escapes(values, dialect)
    values[_line_feeds(values, escapes)] = 0
    values[escapes] = 0
    values[np.minimum(escapes + 1, len(values) - 1)] = 0
    return values.tobytes()


def for_parser(text: bytes, dialect: Dialect) -> bytes:
    """Return text with the escapes that pyarrow understands, and NULL instead of null fields."""
    if not dialect.escape:
        return text
    values = np.frombuffer(text, np.uint8).copy()
    values[values == NULL[0]] = NULL[0] - 1  # this too is invalid in UTF-8
    escapes = _escapes(values, dialect)
    escapes = escapes[escapes + 1 < len(values)]
    to_escape = [_line_feeds(values, escapes)]
    nulls = _nulls(text, escapes, dialect)
    if dialect.quote:
        special = list(dialect.boundaries + dialect.quote + dialect.escape)
        is_special = np.isin(values[escapes + 1], special)
        to_escape.append(escapes[~is_special & ~np.isin(escapes, nulls)])
    else:
        values[escapes + 1] = _MEANINGS[values[escapes + 1]]
    values[nulls] = NULL[0]
    return np.insert(values, np.concatenate(to_escape), dialect.escape[0]).tobytes()


def _escapes(values: np.ndarray, dialect: Dialect) -> np.ndarray:
    """Return the positions (int64) of the escape characters that are not escaped themselves."""
    positions = np.flatnonzero(values == dialect.escape[0])
    numbers = np.arange(len(positions))
    first = np.diff(positions, prepend=-2) > 1
    in_row = numbers - np.maximum.accumulate(np.where(first, numbers, 0))
    return np.asarray(positions[in_row % 2 == 0])


def _line_feeds(values: np.ndarray, escapes: np.ndarray) -> np.ndarray:
    """Return the positions (int64) of the line feeds of escaped CRLFs. The escape character is
    before the carriage return, so pyarrow would not see that the line feed is escaped, too."""
    escapes = escapes[escapes + 2 < len(values)]
    return np.asarray(escapes[(values[escapes + 1] == _CR) & (values[escapes + 2] == _LF)] + 2)


def _nulls(text: bytes, escapes: np.ndarray, dialect: Dialect) -> np.ndarray:
    """Return the positions (int64) of the escape characters in null fields, `\\N`."""
    plain = np.frombuffer(b"\n" + without_escapes(text, dialect) + b"\n\n", np.uint8)
    ends = np.isin(plain, list(dialect.boundaries))  # ends[n + 1] is about the byte n of the text
    is_n = np.frombuffer(text, np.uint8)[escapes + 1] == ord("N")
    return np.asarray(escapes[is_n & ends[escapes] & ends[escapes + 3]])
