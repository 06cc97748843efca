"""Opens images from untrusted sources, decodes and encodes them with Pillow, and builds columns.

Pillow supports many formats and detects them by content, not by file name. One of them is
PostScript, for which Pillow starts Ghostscript. Therefore only formats that hold pixels are opened.
A test fails if other code calls `Image.open`.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image, ImageFile
from PIL.ExifTags import Base
from PIL.ImageOps import exif_transpose
from ray.data.extensions import ArrowTensorArray, ArrowVariableShapedTensorArray

from batchinference.spec.media import MAX_PIXELS
from batchinference.spec.read import PictureOptions

Image.init()
_WANTED = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF")
FORMATS = tuple(name for name in _WANTED if name in Image.OPEN)
"""The wanted formats that this build of Pillow supports."""
_ORIENTATION = Base.Orientation.value
CHANNELS = (1, 3, 4)
_NO_MEMORY = "out of memory when "
_NO_MEMORY_WEBP = ("encoding error 1", "encoding error 2")

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
    many pixels, or more than 16 bits per channel, because its black and white values are unknown.
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


def is_pixels(value: Any) -> bool:
    """Return whether a value is an array that can be encoded as an image: uint8, height x width, or
    height x width x 1, 3 or 4 channels."""
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or not value.size:
        return False
    return value.ndim == 2 or (value.ndim == 3 and value.shape[2] in CHANNELS)


def encode(value: Any, file_format: str) -> bytes:
    """Return an image as the bytes of a file.

    Raises ValueError if the value is not an image, and MemoryError if memory runs out."""
    if isinstance(value, bytes):
        return _encoded_again(value, file_format)
    if not is_pixels(value):
        array = isinstance(value, np.ndarray)
        found = f"{value.dtype} {value.shape}" if array else type(value).__name__
        raise ValueError(
            f"{found} is no image, which is bytes or uint8 pixels: height x width, or height x "
            "width x 1, 3 or 4 channels"
        )
    pixels = value[:, :, 0] if value.ndim == 3 and value.shape[2] == 1 else value
    return _saved(Image.fromarray(np.ascontiguousarray(pixels)), file_format)


def _encoded_again(content: bytes, file_format: str) -> bytes:
    try:
        with open_image(content) as image:
            same = (image.format or "").lower() == file_format
            return content if same else _saved(image, file_format)
    except OSError as error:
        _raise_if_out_of_memory(error)
        raise ValueError(f"bytes are no image: {error}") from None


def _raise_if_out_of_memory(error: Exception) -> None:
    """Raise MemoryError if a codec of Pillow ran out of memory. It reports this as an OSError
    without errno, or as an error number of libwebp."""
    if str(error).startswith(_NO_MEMORY) or str(error) in _NO_MEMORY_WEBP:
        raise MemoryError(str(error)) from error


def _saved(image: Image.Image, file_format: str) -> bytes:
    if file_format == "jpeg" and image.mode not in ("L", "RGB", "CMYK"):
        image = image.convert("RGB")  # JPEG has no transparency
    buffer = io.BytesIO()
    try:
        image.save(buffer, file_format)
    except (OSError, ValueError) as error:
        _raise_if_out_of_memory(error)
        raise
    return buffer.getvalue()
