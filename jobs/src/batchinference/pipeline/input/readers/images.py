"""Reads images: one row per file, or one row per page. FrameReader is also the base for videos."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from batchinference.pipeline.error_classification import is_about_the_file
from batchinference.pipeline.input.readers import BadRow, Chunk, Reader, grouped
from batchinference.pipeline.input.readers.whole_file import WholeFileReader
from batchinference.pipeline.input.signatures import is_image
from batchinference.pipeline.media import images
from batchinference.pipeline.media.images import Frame, page_frames, to_arrow, without_damaged_end
from batchinference.pipeline.row_warnings import with_warnings
from batchinference.pipeline.storage.location import Location

if TYPE_CHECKING:
    from batchinference.spec.media import FrameFields
    from batchinference.spec.read import ImageOptions

CHUNK_BYTES = 8 << 20


class FrameReader(Reader):
    """A reader of files with several pictures."""

    names: tuple[str, ...]
    """The columns: the picture, its index, and for some videos its time."""
    chunk_bytes = CHUNK_BYTES

    def __init__(self, options: FrameFields) -> None:
        self._size, self._accepts_cut = options.size, options.truncated == "accept"

    def frames(self, file: Location) -> Iterator[Frame | Exception]:
        """Yield the pictures of a file, and an error for each picture that cannot be decoded."""
        raise NotImplementedError

    def read(self, file: Location) -> Iterator[Chunk]:
        frames = self.frames(file)
        frames = without_damaged_end(frames) if self._accepts_cut else frames
        rows = (BadRow(each) if isinstance(each, Exception) else each for each in frames)
        for group in grouped(rows, lambda frame: frame.pixels.nbytes, self.chunk_bytes):
            yield group if isinstance(group, BadRow) else self._table(group)

    def _table(self, rows: list[Frame]) -> pa.Table:
        pictures = to_arrow([row.pixels for row in rows], self._size)
        indexes = pa.array([row.index for row in rows])
        times = pa.array([row.seconds for row in rows], pa.float64())
        table = pa.table([pictures, indexes, times][: len(self.names)], list(self.names))
        return with_warnings(table, {at: row.warnings for at, row in enumerate(rows)})

    def columns(self) -> list[str]:
        return list(self.names)


class ImageReader(WholeFileReader):
    names = ("image",)
    recognizes = staticmethod(is_image)
    _options: ImageOptions

    @classmethod
    def of(cls, options: ImageOptions) -> Reader:
        return cls(options) if options.pages == "first" else PageReader(options)

    def decode(self, content: bytes) -> np.ndarray:
        """Return the pixels of the first page, with the type and shape of `images.decode`."""
        return images.decode(content, self._options)

    def columns_of(self, decoded: list[np.ndarray]) -> list[pa.Array]:
        return [images.to_arrow(decoded, self._options.size)]


class PageReader(FrameReader):
    """Reads each page of an image file, and each frame of an animation, as a row."""

    names = ("image", "page_index")

    def __init__(self, options: ImageOptions) -> None:
        super().__init__(options)
        self._files, self._options = ImageReader(options), options

    def frames(self, file: Location) -> Iterator[Frame | Exception]:
        content = self._files.fetch(file)
        try:
            yield from page_frames(self._files.check_size(content), self._options)
        except Exception as error:
            if not is_about_the_file(error):
                raise
            yield error

    def rows_in(self, file: Location, size: int) -> int:
        return len(images.ImagePages(self._files.fetch(file), self._options).numbers)
