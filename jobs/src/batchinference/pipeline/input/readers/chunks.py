"""Parts of what a reader yields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from batchinference.pipeline.input.readers.base import BadRow, Chunk
from batchinference.pipeline.row_ids import RowRange


def size_of(chunk: Chunk) -> int:
    """Rows of a chunk."""
    return chunk.rows if isinstance(chunk, BadRow) else int(chunk.num_rows)


def part(chunk: Chunk, start: int, rows: int) -> Chunk:
    """At most so many rows of a chunk."""
    if isinstance(chunk, BadRow):
        return BadRow(chunk.error, min(rows, chunk.rows - start))
    return chunk.slice(start, rows)


def within(chunk: Chunk, row: int, gaps: Sequence[RowRange]) -> Iterator[tuple[int, Chunk]]:
    """The parts of a chunk that lie in gaps, and how many of its rows are before each; all of it
    where there are none. `row` is the number of its first row."""
    if not gaps:
        yield 0, chunk
        return
    size = size_of(chunk)
    for first_row, after_row in gaps:
        start = max(0, first_row - row)
        stop = size if after_row is None else min(size, after_row - row)
        if start < stop:
            yield start, part(chunk, start, stop - start)


def after(rows: int, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """What follows so many rows."""
    for chunk in chunks:
        size = size_of(chunk)
        if rows < size:
            yield part(chunk, rows, size)
        rows = max(0, rows - size)


def first(rows: int, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """So many rows, and no more of the file than they are in."""
    while rows > 0 and (chunk := next(chunks, None)) is not None:
        yield part(chunk, 0, rows)
        rows -= size_of(chunk)
