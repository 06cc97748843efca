"""Readers of images: one row per file, or one row per page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from batchinference.pipeline.error_attribution import is_about_the_file
from batchinference.pipeline.input.readers import Reader
from batchinference.pipeline.input.readers.frames import FrameReader
from batchinference.pipeline.input.readers.whole_file import WholeFileReader
from batchinference.pipeline.input.signatures import is_image
from batchinference.pipeline.media import images
from batchinference.pipeline.media.frames import Frame, page_frames
from batchinference.pipeline.storage.location import Location

if TYPE_CHECKING:
    from batchinference.spec.read import ImageOptions


class ImageReader(WholeFileReader):
    names = ("image",)
    recognizes = staticmethod(is_image)

    @classmethod
    def of(cls, options: ImageOptions) -> Reader:
        return cls(options) if options.pages == "first" else PageReader(options)

    def __init__(self, options: ImageOptions) -> None:
        super().__init__(options)
        self._options = options

    def decode(self, content: bytes) -> np.ndarray:
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
            yield from page_frames(self._files.checked(content), self._options)
        except Exception as error:
            if not is_about_the_file(error):
                raise
            yield error

    def rows_in(self, file: Location, size: int) -> int:
        return len(images.ImagePages(self._files.fetch(file), self._options).numbers)
