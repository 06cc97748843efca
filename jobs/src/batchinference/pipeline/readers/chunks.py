"""Parts of what a reader yields."""

from __future__ import annotations

from collections.abc import Iterator

from batchinference.pipeline.readers.base import BadRow, Chunk


def size_of(chunk: Chunk) -> int:
    """Rows of a chunk."""
    return 1 if isinstance(chunk, BadRow) else int(chunk.num_rows)


def after(rows: int, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """What follows so many rows."""
    for chunk in chunks:
        size = size_of(chunk)
        if rows < size:
            yield chunk if isinstance(chunk, BadRow) else chunk.slice(rows)
        rows = max(0, rows - size)


def first(rows: int, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """So many rows, and no more of the file than they are in."""
    while rows > 0 and (chunk := next(chunks, None)) is not None:
        yield chunk if isinstance(chunk, BadRow) else chunk.slice(0, rows)
        rows -= size_of(chunk)
