"""Slices the chunks that a reader yields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from batchinference.pipeline.input.readers.base import BadRow, Chunk
from batchinference.pipeline.row_ids import RowRange


def size_of(chunk: Chunk) -> int:
    """Return the number of rows of a chunk."""
    return chunk.rows if isinstance(chunk, BadRow) else int(chunk.num_rows)


def part(chunk: Chunk, start: int, rows: int) -> Chunk:
    """Return at most `rows` rows of a chunk, from row `start` of the chunk."""
    if isinstance(chunk, BadRow):
        return BadRow(chunk.error, min(rows, chunk.rows - start))
    return chunk.slice(start, rows)


def within(chunk: Chunk, row: int, gaps: Sequence[RowRange]) -> Iterator[tuple[int, Chunk]]:
    """Yield the parts of a chunk that are inside the row ranges `gaps`.

    Each part comes with the number of rows before it in the chunk. If `gaps` is empty, the whole
    chunk is yielded. `row` is the row number, in the file, of the first row of the chunk."""
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
    """Yield the chunks without their first `rows` rows."""
    for chunk in chunks:
        size = size_of(chunk)
        if rows < size:
            yield part(chunk, rows, size)
        rows = max(0, rows - size)


def first(rows: int, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Yield the first `rows` rows of the chunks, without reading further chunks of the file."""
    while rows > 0 and (chunk := next(chunks, None)) is not None:
        yield part(chunk, 0, rows)
        rows -= size_of(chunk)
