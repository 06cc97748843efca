"""Whether a quote was open where a file of separated values ended.

pyarrow takes such a quote as closed there, and so what was behind it as one value. A line of our
own behind the file tells: it is a line of its own, unless a quote was open.
"""

from __future__ import annotations

import codecs
import re

import pyarrow as pa

from batchinference.pipeline.input.readers.base import MAX_COLUMNS, BadRow

MARK = "\x1e\x1f\x1e"
_QUOTED = re.compile(rb'"[^"]*(?:"|$)')
_END = f"\n{MARK}\n".encode()


class Marked:
    """A stream of text, as pyarrow reads from it: without a UTF-8 mark in front, and with a line
    behind it."""

    closed = False

    def __init__(self, source: pa.NativeFile, delimiter: str) -> None:
        self._source = source
        self._delimiter = delimiter
        self._first = True
        self._ended = False

    def read(self, size: int) -> bytes:
        content = bytes(self._source.read(size))
        if self._first:
            self._first = False
            content = content.removeprefix(codecs.BOM_UTF8) or bytes(self._source.read(size))
            check_columns(content, self._delimiter)
        if content or self._ended:
            return content
        self._ended = True
        return _END

    def close(self) -> None:
        """Whoever opened the stream closes it."""


def check_columns(beginning: bytes, delimiter: str) -> None:
    """Raise ArrowInvalid where the first line has too many fields: the parser would take memory
    for all of them, until the process ends."""
    if beginning.count(delimiter.encode()) < MAX_COLUMNS:
        return
    line = re.split(rb"[\r\n]", _QUOTED.sub(b"", beginning).lstrip(b"\r\n"), maxsplit=1)[0]
    if (fields := 1 + line.count(delimiter.encode())) > MAX_COLUMNS:
        raise pa.ArrowInvalid(f"the first line has {fields} fields, more than {MAX_COLUMNS}")


def without_mark(table: pa.Table) -> tuple[pa.Table, BadRow | None]:
    """Rows of bytes without the line behind the file, or without the row that swallowed it."""
    if not table.num_rows:
        return table, None
    cells = [column[-1].as_py() for column in table.columns]
    holding = [cell for cell in cells if cell.rstrip(b"\n").endswith(MARK.encode())]
    if not holding:
        return table, None
    before = table.slice(0, table.num_rows - 1)
    if cells == [MARK.encode()]:
        return before, None
    return before, swallowing(holding[0].decode(errors="replace"))


def swallowing(text: str) -> BadRow:
    """The row in which a quote is opened but not closed, and the lines that are lost behind it."""
    lines = [line for line in text.partition(MARK)[0].split("\n")[1:] if line.strip()]
    message = f"a quote is opened but not closed, so that {len(lines)} lines behind it are lost"
    return BadRow(ValueError(message), 1 + len(lines))
