"""Pictures, one a file."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from batchinference.pipeline.readers import pixels
from batchinference.pipeline.readers.whole_file import WholeFileReader
from batchinference.spec.read import ImageOptions


class ImageReader(WholeFileReader):
    names = ("image",)
    extensions = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff")

    def __init__(self, options: ImageOptions) -> None:
        super().__init__(options)
        self._options = options

    def decode(self, content: bytes) -> np.ndarray:
        return pixels.decode(content, self._options)

    def columns_of(self, decoded: list[np.ndarray]) -> list[pa.Array]:
        return [pixels.to_arrow(decoded, self._options.size)]
