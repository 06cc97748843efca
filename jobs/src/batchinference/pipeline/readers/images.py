"""Pictures, one a file."""

from __future__ import annotations

import pyarrow as pa

from batchinference.pipeline.readers import pixels
from batchinference.pipeline.readers.whole_file import WholeFileReader
from batchinference.spec.read import ImageOptions


class ImageReader(WholeFileReader):
    names = ("image",)
    extensions = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff")

    def __init__(self, options: ImageOptions) -> None:
        self._options = options

    def decode(self, content: bytes) -> list[pa.Array]:
        picture = pixels.decode(content, self._options.mode, self._options.size)
        return [pixels.to_arrow([picture], self._options.size)]
