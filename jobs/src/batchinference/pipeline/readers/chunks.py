"""Parts of what a reader yields."""

from __future__ import annotations

from collections.abc import Iterator

from batchinference.pipeline.readers.base import BadRow, Chunk


def size_of(chunk: Chunk) -> int:
    """Rows of a chunk."""
    return chunk.rows if isinstance(chunk, BadRow) else int(chunk.num_rows)


def part(chunk: Chunk, start: int, rows: int) -> Chunk:
    """At most so many rows of a chunk."""
    if isinstance(chunk, BadRow):
        return BadRow(chunk.error, min(rows, chunk.rows - start))
    return chunk.slice(start, rows)


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
