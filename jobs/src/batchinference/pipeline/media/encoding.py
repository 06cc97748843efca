"""Encodes pixels and already encoded images as image files with Pillow."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

from batchinference.pipeline.media.decoding import open_image

CHANNELS = (1, 3, 4)


def is_pixels(value: Any) -> bool:
    """Return whether a value is an array that can be encoded as an image: uint8, height x width, or
    height x width x 1, 3 or 4 channels."""
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or not value.size:
        return False
    return value.ndim == 2 or (value.ndim == 3 and value.shape[2] in CHANNELS)


def encode(value: Any, file_format: str) -> bytes:
    """Return an image as the bytes of a file. Raises ValueError if the value is not an image."""
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
        raise ValueError(f"bytes are no image: {error}") from None


def _saved(image: Image.Image, file_format: str) -> bytes:
    if file_format == "jpeg" and image.mode not in ("L", "RGB", "CMYK"):
        image = image.convert("RGB")  # JPEG has no transparency
    buffer = io.BytesIO()
    image.save(buffer, file_format)
    return buffer.getvalue()
