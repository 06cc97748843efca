"""Pictures as columns, by Pillow: decoded, converted and resized in one go."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
from PIL import Image
from ray.data.extensions import ArrowTensorArray, ArrowVariableShapedTensorArray


def decode(content: bytes, mode: str, size: list[int] | None) -> np.ndarray:
    """Height x width x channels, uint8; without channels in mode L. `size` is height and width."""
    with Image.open(io.BytesIO(content)) as image:
        if size is not None:
            height, width = size
            # lets the JPEG decoder skip detail that the resize would throw away
            image.draft(mode, (width * 2, height * 2))
        picture = image if image.mode == mode else image.convert(mode)  # which always copies
        if size is not None:
            picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(picture)


def to_arrow(pictures: list[np.ndarray], size: list[int] | None) -> pa.Array:
    """Pictures as one column, of one shape where they were resized to a size."""
    if size is not None:
        return ArrowTensorArray.from_numpy(np.stack(pictures))
    return ArrowVariableShapedTensorArray.from_numpy(pictures)
