"""Base of the readers of files with several pictures, and the reader of the pages of images: one
row per picture."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from batchinference.pipeline.input.readers import BadRow, Chunk, Reader, or_bad
from batchinference.pipeline.input.readers.whole_file import ImageReader
from batchinference.pipeline.media import images
from batchinference.pipeline.row_warnings import RowWarning, collect_warnings, with_warnings
from batchinference.pipeline.storage.location import Location

if TYPE_CHECKING:
    from batchinference.spec.read import ImageOptions

CHUNK_BYTES = 8 << 20


class Frame(NamedTuple):
    """A picture of a file. `index` counts the pictures of the file, and `seconds` is the time of a
    frame of a video."""

    index: int
    pixels: np.ndarray
    warnings: list[RowWarning]
    seconds: float | None = None


class FrameReader(Reader):
    """A reader of files with several pictures, which are decoded on demand."""

    names: tuple[str, ...]
    """The columns of the picture, of its index and, if there is a third one, of its time."""

    def __init__(self, size: list[int] | None) -> None:
        self._size = size

    def frames(self, file: Location) -> Iterator[Frame | BadRow]:
        """Yield the pictures of a file."""
        raise NotImplementedError

    def read(self, file: Location) -> Iterator[Chunk]:
        rows: list[Frame] = []
        size = 0
        for frame in self.frames(file):
            bad = isinstance(frame, BadRow)
            if isinstance(frame, Frame):
                rows.append(frame)
                size += frame.pixels.nbytes
            if rows and (bad or size >= CHUNK_BYTES):
                yield self._table(rows)
                rows, size = [], 0
            if isinstance(frame, BadRow):
                yield frame
        if rows:
            yield self._table(rows)

    def _table(self, rows: list[Frame]) -> pa.Table:
        pictures = images.to_arrow([row.pixels for row in rows], self._size)
        indexes = pa.array([row.index for row in rows])
        times = pa.array([row.seconds for row in rows], pa.float64())
        columns = [pictures, indexes, times][: len(self.names)]
        table = pa.table(columns, list(self.names))
        return with_warnings(table, {at: row.warnings for at, row in enumerate(rows)})

    def columns(self) -> list[str]:
        return list(self.names)


class PageReader(FrameReader):
    """Reads each page of an image file, and each frame of an animation, as a row."""

    extensions = ImageReader.extensions
    names = ("image", "page_index")

    def __init__(self, options: ImageOptions) -> None:
        super().__init__(options.size)
        self._file, self._options = ImageReader(options), options

    def _pages(self, content: bytes) -> images.ImagePages:
        return images.ImagePages(self._file.checked(content), self._options)

    def frames(self, file: Location) -> Iterator[Frame | BadRow]:
        pages = or_bad(partial(self._pages, self._file.fetch(file)))
        if isinstance(pages, BadRow):
            yield pages
            return
        for index, number in enumerate(pages.numbers):
            with collect_warnings() as warnings:
                pixels = or_bad(partial(pages.pixels, number))
            yield pixels if isinstance(pixels, BadRow) else Frame(index, pixels, warnings)

    def rows_in(self, file: Location, size: int) -> int:
        return len(self._pages(self._file.fetch(file)).numbers)
