"""Pictures, by Pillow: decoded, converted and resized in one go."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
from PIL import Image
from ray.data.extensions import ArrowTensorArray, ArrowVariableShapedTensorArray

from batchinference.pipeline.readers.whole_file import WholeFileReader
from batchinference.spec.read import ImageOptions


class ImageReader(WholeFileReader):
    column = "image"
    extensions = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff")

    def __init__(self, options: ImageOptions) -> None:
        self._mode = options.mode
        self._size = options.size

    def decode(self, content: bytes) -> np.ndarray:
        """Height x width x channels, uint8; without channels in mode L."""
        with Image.open(io.BytesIO(content)) as image:
            if self._size is not None:
                height, width = self._size
                # lets the JPEG decoder skip detail that the resize would throw away
                image.draft(self._mode, (width * 2, height * 2))
            converted = image.convert(self._mode)
            if self._size is not None:
                converted = converted.resize((width, height), Image.Resampling.BILINEAR)
            return np.asarray(converted)

    def to_arrow(self, values: list[np.ndarray]) -> pa.Array:
        if self._size is not None:
            return ArrowTensorArray.from_numpy(np.stack(values))
        return ArrowVariableShapedTensorArray.from_numpy(values)
