"""Pictures as columns, by Pillow: decoded, converted and resized in one go."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from PIL import Image
from PIL.ExifTags import Base
from PIL.ImageOps import exif_transpose
from ray.data.extensions import ArrowTensorArray, ArrowVariableShapedTensorArray

from batchinference.pipeline.media.image_file import open_image
from batchinference.spec.read import PictureOptions

_ORIENTATION = Base.Orientation.value


def decode(content: bytes, options: PictureOptions) -> np.ndarray:
    """Height x width x channels, uint8; without channels in mode L.

    The way up is that of a camera which tells it. Raises ValueError for too many pixels, and
    for more than 16 bits a channel, of which nothing says what is black and what is white.
    """
    mode, size = options.mode, options.size
    with open_image(content, options.max_pixels) as image:
        if size is not None:
            # lets the JPEG decoder skip detail that the resize would throw away
            image.draft(mode, (2 * max(size), 2 * max(size)))
        upright = image if image.getexif().get(_ORIENTATION, 1) == 1 else exif_transpose(image)
        picture = _in_mode(upright, mode)
        if size is not None:
            height, width = size
            picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(picture)


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    if image.mode == mode:
        return image  # a conversion would copy it
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        bits = "32-bit integers" if image.mode == "I" else "floating numbers"
        raise ValueError(f"its pixels are {bits}: read it as binary and scale them in a step")
    return image.convert(mode)


def to_arrow(pictures: list[np.ndarray], size: list[int] | None) -> pa.Array:
    """Pictures as one column, of one shape where they were resized to a size."""
    if size is not None:
        return ArrowTensorArray.from_numpy(np.stack(pictures))
    return ArrowVariableShapedTensorArray.from_numpy(pictures)
