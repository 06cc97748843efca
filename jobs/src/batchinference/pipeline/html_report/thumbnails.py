"""Makes thumbnails of the images among the values of a row."""

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

from batchinference.pipeline.media.images import is_pixels, open_image
from batchinference.pipeline.media.pixels import in_mode

THUMBNAIL, SMALLEST = 96, 8
"""The pixels of the longer side of a thumbnail, and the minimum pixels of the shorter side of an
array that is shown as an image."""
MAX_PIXELS = 25_000_000
"""Images with more pixels get no thumbnail."""


def image_of(value: Any) -> Image.Image | None:
    """Return the image in a value: pixels, bytes of a file, or a struct with bytes; else None."""
    if isinstance(value, dict):
        value = value.get("bytes")
    if is_pixels(value) and min(value.shape[:2]) >= SMALLEST:
        flat = value[:, :, 0] if value.ndim == 3 and value.shape[2] == 1 else value
        return Image.fromarray(np.ascontiguousarray(flat)) if flat.size <= 4 * MAX_PIXELS else None
    if not isinstance(value, bytes):
        return None
    try:
        return open_image(value, MAX_PIXELS)
    except (OSError, ValueError):
        return None


def thumbnail(image: Image.Image) -> str:
    """Return a small copy of an image as a data URI; empty if it cannot be decoded."""
    buffer = io.BytesIO()
    try:
        image.draft("RGB", (2 * THUMBNAIL, 2 * THUMBNAIL))
        small = in_mode(image, "RGB", "white").copy()
        small.thumbnail((THUMBNAIL, THUMBNAIL))
        small.save(buffer, "jpeg", quality=75)
    except (OSError, ValueError, SyntaxError):
        return ""
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
