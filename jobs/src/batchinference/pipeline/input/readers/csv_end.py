"""Detects a quote that is still open at the end of a CSV file.

pyarrow treats such a quote as closed at the end of the file, so all text after the quote becomes
one value. To detect this, a marker line is appended to the file. The parser returns the marker as a
separate line, unless a quote is open.
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
    """A text stream for pyarrow, without a UTF-8 byte order mark and with the marker line at the
    end."""

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
        """Do nothing: the code that opened the stream closes it."""


def check_columns(beginning: bytes, delimiter: str) -> None:
    """Raise ArrowInvalid if the first line has more than MAX_COLUMNS fields.

    The parser would allocate memory for all of them, which can kill the process."""
    if beginning.count(delimiter.encode()) < MAX_COLUMNS:
        return
    line = re.split(rb"[\r\n]", _QUOTED.sub(b"", beginning).lstrip(b"\r\n"), maxsplit=1)[0]
    if (fields := 1 + line.count(delimiter.encode())) > MAX_COLUMNS:
        raise pa.ArrowInvalid(f"the first line has {fields} fields, more than {MAX_COLUMNS}")


def without_mark(table: pa.Table) -> tuple[pa.Table, BadRow | None]:
    """Return the rows without the marker line.

    If an open quote made the marker part of the last row, return the table without that row, and a
    BadRow for it."""
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
    """Return a BadRow for the row with the open quote and the lines that are lost after it."""
    lines = [line for line in text.partition(MARK)[0].split("\n")[1:] if line.strip()]
    message = f"a quote is opened but not closed, so that {len(lines)} lines behind it are lost"
    return BadRow(ValueError(message), 1 + len(lines))
