"""Opens pictures that others may have made.

Pillow knows many formats, which it tells apart by content and not by name: one of them is
PostScript, for which it starts Ghostscript. Only formats that hold pixels are opened. A test finds
other calls of `Image.open`.
"""

from __future__ import annotations

import io
import warnings

from PIL import Image, ImageFile

MAX_PIXELS = 64_000_000
"""Pixels of a picture where no option says how many."""
Image.init()
_WANTED = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF")
FORMATS = tuple(name for name in _WANTED if name in Image.OPEN)
"""Those that this build of Pillow has."""

# a picture above the limit is an error, which the warning would only repeat
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def open_image(content: bytes, max_pixels: int = MAX_PIXELS) -> ImageFile.ImageFile:
    """Return a picture whose pixels are not decoded yet. Raises ValueError if it has more pixels
    than `max_pixels`, and OSError if it is none."""
    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels  # Pillow has a limit of its own, for the process
    limit = f"max_pixels ({max_pixels})"
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError:
        raise ValueError(f"the picture has more pixels than {limit}") from None
    if image.width * image.height > max_pixels:
        raise ValueError(f"{image.width} x {image.height} pixels are more than {limit}")
    return image
