"""Handles lines of a CSV file that have the wrong number of fields."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.csv as pac

from batchinference.pipeline.input.readers.base import BadRow, Chunk
from batchinference.pipeline.input.readers.csv_end import MARK, swallowing


class InOrder:
    """Inserts rows with the wrong number of fields at their position in the file.

    The parser reports such rows per block, before it returns the rows that surround them."""

    def __init__(self, rejected: deque[pac.InvalidRow], *, header: bool) -> None:
        self._rejected = rejected
        self._next = 2 if header else 1  # the parser counts lines from 1 and includes the header

    def with_rejected(self, table: pa.Table) -> Iterator[Chunk]:
        while self._rejected and self._rejected[0].number <= self._next + table.num_rows:
            before = self._rejected[0].number - self._next
            yield table.slice(0, before)
            table = table.slice(before)
            self._next += before + 1
            yield _bad_row(self._rejected.popleft())
        self._next += table.num_rows
        yield table

    def rest(self) -> Iterator[BadRow]:
        while self._rejected:
            yield _bad_row(self._rejected.popleft())


def _bad_row(row: pac.InvalidRow) -> BadRow:
    if MARK in row.text:
        return swallowing(row.text)
    text = f"line has {row.actual_columns} fields instead of {row.expected_columns}"
    return BadRow(ValueError(f"{text}: {row.text[:200]}"))
