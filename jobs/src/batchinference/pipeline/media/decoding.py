"""Decodes, converts and resizes images with Pillow, and builds columns of them."""

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
    """Return the pixels of an image: height x width x channels, uint8; height x width in mode L.

    The image is rotated by its EXIF orientation, if it has one. Raises ValueError if it has too
    many pixels, or more than 16 bits per channel: the values of black and white are unknown then.
    """
    mode, size = options.mode, options.size
    with open_image(content, options.max_pixels) as image:
        if size is not None:
            # lets the JPEG decoder skip detail that the resize would discard
            image.draft(mode, (2 * max(size), 2 * max(size)))
        upright = image if image.getexif().get(_ORIENTATION, 1) == 1 else exif_transpose(image)
        picture = _in_mode(upright, mode)
        if size is not None:
            height, width = size
            picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(picture)


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    if image.mode == mode:
        return image  # a conversion would copy the image
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        bits = "32-bit integers" if image.mode == "I" else "floating numbers"
        raise ValueError(f"its pixels are {bits}: read it as binary and scale them in a step")
    return image.convert(mode)


def to_arrow(pictures: list[np.ndarray], size: list[int] | None) -> pa.Array:
    """Return images as one column, with a fixed shape if they were resized to `size`."""
    if size is not None:
        return ArrowTensorArray.from_numpy(np.stack(pictures))
    return ArrowVariableShapedTensorArray.from_numpy(pictures)
