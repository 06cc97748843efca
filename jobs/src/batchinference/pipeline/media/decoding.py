"""Opens images from untrusted sources, decodes them with Pillow, and builds columns of them.

Pillow supports many formats and detects them by content, not by file name. One of them is
PostScript, for which Pillow starts Ghostscript. Therefore only formats that hold pixels are opened.
A test fails if other code calls `Image.open`.
"""

from __future__ import annotations

import io
import warnings

import numpy as np
import pyarrow as pa
from PIL import Image, ImageFile
from PIL.ExifTags import Base
from PIL.ImageOps import exif_transpose
from ray.data.extensions import ArrowTensorArray, ArrowVariableShapedTensorArray

from batchinference.spec.read import PictureOptions
from batchinference.spec.read.media import MAX_PIXELS

Image.init()
_WANTED = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF")
FORMATS = tuple(name for name in _WANTED if name in Image.OPEN)
"""The wanted formats that this build of Pillow supports."""
_ORIENTATION = Base.Orientation.value

# an image above the limit raises an error, so the warning is redundant
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def open_image(content: bytes, max_pixels: int = MAX_PIXELS) -> ImageFile.ImageFile:
    """Return an image whose pixels are not decoded yet. Raises ValueError if it has more pixels
    than `max_pixels`, and OSError if the content is not an image."""
    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels  # Pillow has its own limit per process
    limit = f"max_pixels ({max_pixels})"
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError:
        raise ValueError(f"the picture has more pixels than {limit}") from None
    if image.width * image.height > max_pixels:
        raise ValueError(f"{image.width} x {image.height} pixels are more than {limit}")
    return image


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
