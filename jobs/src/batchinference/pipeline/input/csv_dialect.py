"""Describes the dialect of CSV text (delimiter, quote, escape), and translates escapes for pyarrow.

pyarrow removes an escape character and keeps the next character, so `\\n` would become `n`. Exports
without quotes (MySQL, PostgreSQL, Hive) mean a line feed by `\\n`. Exports with quotes (Spark) mean
a backslash and an `n`, because they escape only special characters. In both, a field `\\N` is null.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

NULL = b"\xffN"
"""The value of a null field. It is invalid UTF-8, so no other field has this value."""
_MEANINGS = np.arange(256, dtype=np.uint8)
_MEANINGS[list(b"0bnrtZ")] = list(b"\0\b\n\r\t\x1a")
"""By byte: the meaning of an escaped byte in text without quotes."""
_LF, _CR = b"\n\r"
DELIMITER_LINE = re.compile(rb'"?sep=([\t -~])"?(?=[\r\n]|\Z)', re.IGNORECASE)
"""A first line for Excel, which names the delimiter, such as `sep=;`."""


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
    """Return text of the same length in which escaped characters are NUL. All quotes, delimiters
    and line ends that remain are structural."""
    if not dialect.escape:
        return text
    values = np.frombuffer(text, np.uint8).copy()
    at = _escapes(values, dialect)
    values[_line_feeds(values, at)] = 0
    values[at] = 0
    values[np.minimum(at + 1, len(values) - 1)] = 0
    return values.tobytes()


def for_parser(text: bytes, dialect: Dialect) -> bytes:
    """Return text whose escapes are in the form of pyarrow, and whose null fields are NULL."""
    if not dialect.escape:
        return text
    values = np.frombuffer(text, np.uint8).copy()
    values[values == NULL[0]] = NULL[0] - 1  # also invalid in UTF-8
    at = _escapes(values, dialect)
    at = at[at + 1 < len(values)]
    to_escape = [_line_feeds(values, at)]
    nulls = _nulls(text, at, dialect)
    if dialect.quote:
        special = np.isin(values[at + 1], list(dialect.boundaries + dialect.quote + dialect.escape))
        to_escape.append(at[~special & ~np.isin(at, nulls)])
    else:
        values[at + 1] = _MEANINGS[values[at + 1]]
    values[nulls] = NULL[0]
    return np.insert(values, np.concatenate(to_escape), dialect.escape[0]).tobytes()


def _escapes(values: np.ndarray, dialect: Dialect) -> np.ndarray:
    """Return the positions (int64) of the escape characters that are not escaped themselves."""
    positions = np.flatnonzero(values == dialect.escape[0])
    numbers = np.arange(len(positions))
    first = np.diff(positions, prepend=-2) > 1
    in_row = numbers - np.maximum.accumulate(np.where(first, numbers, 0))
    return np.asarray(positions[in_row % 2 == 0])


def _line_feeds(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the positions (int64) of the line feeds of escaped CRLFs. The escape character is
    before the carriage return, so pyarrow would not see that the line feed is escaped, too."""
    at = at[at + 2 < len(values)]
    return np.asarray(at[(values[at + 1] == _CR) & (values[at + 2] == _LF)] + 2)


def _nulls(text: bytes, at: np.ndarray, dialect: Dialect) -> np.ndarray:
    """Return the positions (int64) of the escape characters in null fields, `\\N`."""
    structure = np.frombuffer(b"\n" + without_escapes(text, dialect) + b"\n\n", np.uint8)
    ends = np.isin(structure, list(dialect.boundaries))
    named = np.frombuffer(text, np.uint8)[at + 1] == ord("N")
    return np.asarray(at[named & ends[at] & ends[at + 3]])
