"""Reads image files, one file per row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from batchinference.pipeline.input.readers.whole_file import WholeFileReader
from batchinference.pipeline.media import images

if TYPE_CHECKING:
    from batchinference.spec.read import ImageOptions


class ImageReader(WholeFileReader):
    names = ("image",)
    extensions = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff")

    def __init__(self, options: ImageOptions) -> None:
        super().__init__(options)
        self._options = options

    def decode(self, content: bytes) -> np.ndarray:
        return images.decode(content, self._options)

    def columns_of(self, decoded: list[np.ndarray]) -> list[pa.Array]:
        return [images.to_arrow(decoded, self._options.size)]
