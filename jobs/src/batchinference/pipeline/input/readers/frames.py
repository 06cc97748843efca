"""The base of readers of files with several pictures, which are decoded on demand: one row per page
of an image or frame of a video."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from batchinference.pipeline.input.readers import BadRow, Chunk, Reader
from batchinference.pipeline.media.frames import Frame, up_to_last
from batchinference.pipeline.media.images import to_arrow
from batchinference.pipeline.row_warnings import with_warnings
from batchinference.pipeline.storage.location import Location

if TYPE_CHECKING:
    from batchinference.spec.media import FrameFields

CHUNK_BYTES = 8 << 20


class FrameReader(Reader):
    """A reader of files with several pictures. `names` are the columns of the picture, of its index
    and, if there is a third one, of its time."""

    names: tuple[str, ...]

    def __init__(self, options: FrameFields) -> None:
        self._size, self._accepts_cut = options.size, options.truncated == "accept"

    def frames(self, file: Location) -> Iterator[Frame | Exception]:
        """Yield the pictures of a file, with an error for each picture that cannot be decoded."""
        raise NotImplementedError

    def read(self, file: Location) -> Iterator[Chunk]:
        frames = self.frames(file)
        rows: list[Frame] = []
        size = 0
        for frame in up_to_last(frames) if self._accepts_cut else frames:
            if isinstance(frame, Exception):
                yield from [*self._tables(rows), BadRow(frame)]
                rows, size = [], 0
                continue
            rows.append(frame)
            size += frame.pixels.nbytes
            if size >= CHUNK_BYTES:
                yield from self._tables(rows)
                rows, size = [], 0
        yield from self._tables(rows)

    def _tables(self, rows: list[Frame]) -> Iterator[pa.Table]:
        if rows:
            pictures = to_arrow([row.pixels for row in rows], self._size)
            indexes = pa.array([row.index for row in rows])
            times = pa.array([row.seconds for row in rows], pa.float64())
            table = pa.table([pictures, indexes, times][: len(self.names)], list(self.names))
            yield with_warnings(table, {at: row.warnings for at, row in enumerate(rows)})

    def columns(self) -> list[str]:
        return list(self.names)
