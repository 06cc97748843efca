"""Describes how CSV text is written, and translates escape characters for pyarrow.

To pyarrow, an escape character makes the next character a part of the value, so `\\n` would become
`n`. Exports mean something else by it. Without quotes (MySQL, PostgreSQL, Hive), `\\n` is a line
feed. With quotes (Spark), it is a backslash and an `n`: only special characters are escaped. In
both, a field that is `\\N` is null.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

NULL = b"\xffN"
"""What a null field becomes. It is not valid UTF-8, so no other field is equal to it."""
_MEANINGS = np.arange(256, dtype=np.uint8)
_MEANINGS[list(b"0bnrtZ")] = list(b"\0\b\n\r\t\x1a")
"""The character that an escaped character stands for if there are no quotes."""
_LF, _CR = b"\n\r"
_DELIMITER_LINE = re.compile(rb'"?sep=([\t -~])"?(?=[\r\n]|\Z)', re.IGNORECASE)
"""The first line of a file of Excel, which names the delimiter."""


@dataclass(frozen=True)
class Dialect:
    """How CSV text is written. The characters are single bytes, or empty if there are none."""

    delimiter: bytes = b","
    quote: bytes = b'"'
    escape: bytes = b""
    comment: bytes = b""
    newlines_in_values: bool = True

    @property
    def boundaries(self) -> bytes:
        """The characters that end a field."""
        return self.delimiter + b"\r\n"


def named_delimiter(text: bytes) -> bytes:
    """Return the delimiter that a first line such as `sep=;` names; empty if there is none."""
    found = _DELIMITER_LINE.match(text)
    return bytes(found[1]) if found else b""


def without_escapes(text: bytes, dialect: Dialect) -> bytes:
    """Return text of the same length in which NUL stands for escaped characters, so that all other
    quotes, delimiters and line ends are structural."""
    if not dialect.escape:
        return text
    values = np.frombuffer(text, np.uint8).copy()
    at = _escapes(values, dialect)
    values[_line_feeds(values, at)] = 0
    values[at] = 0
    values[np.minimum(at + 1, len(values) - 1)] = 0
    return values.tobytes()


def for_parser(text: bytes, dialect: Dialect) -> bytes:
    """Return text in which the escape character makes the next character a part of the value."""
    if not dialect.escape:
        return text
    values = np.frombuffer(text, np.uint8).copy()
    values[values == NULL[0]] = NULL[0] - 1  # it is invalid in UTF-8, too
    at = _escapes(values, dialect)
    at = at[at + 1 < len(values)]
    added = [_line_feeds(values, at)]
    nulls = _nulls(text, at, dialect)
    if dialect.quote:
        special = np.isin(values[at + 1], list(dialect.boundaries + dialect.quote + dialect.escape))
        added.append(at[~special & ~np.isin(at, nulls)])
    else:
        values[at + 1] = _MEANINGS[values[at + 1]]
    values[nulls] = NULL[0]
    return np.insert(values, np.concatenate(added), dialect.escape[0]).tobytes()


def _escapes(values: np.ndarray, dialect: Dialect) -> np.ndarray:
    """Return the positions of the escape characters that are not escaped themselves."""
    positions = np.flatnonzero(values == dialect.escape[0])
    numbers = np.arange(len(positions))
    first = np.diff(positions, prepend=-2) > 1
    in_row = numbers - np.maximum.accumulate(np.where(first, numbers, 0))
    return np.asarray(positions[in_row % 2 == 0])


def _line_feeds(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the positions of the line feeds of escaped CRLFs: the escape character is before the
    carriage return."""
    at = at[at + 2 < len(values)]
    return np.asarray(at[(values[at + 1] == _CR) & (values[at + 2] == _LF)] + 2)


def _nulls(text: bytes, at: np.ndarray, dialect: Dialect) -> np.ndarray:
    """Return the positions of the escape characters of fields that are null."""
    structure = np.frombuffer(b"\n" + without_escapes(text, dialect) + b"\n\n", np.uint8)
    ends = np.isin(structure, list(dialect.boundaries))
    named = np.frombuffer(text, np.uint8)[at + 1] == ord("N")
    return np.asarray(at[named & ends[at] & ends[at + 3]])
