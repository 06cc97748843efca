"""Opens images from untrusted sources.

Pillow supports many formats and detects them by content, not by file name. One of them is
PostScript, for which Pillow starts Ghostscript. Therefore only formats that hold pixels are opened.
A test fails if other code calls `Image.open`.
"""

from __future__ import annotations

import io
import warnings

from PIL import Image, ImageFile

MAX_PIXELS = 64_000_000
"""Maximum number of pixels of an image if no option sets it."""
Image.init()
_WANTED = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF")
FORMATS = tuple(name for name in _WANTED if name in Image.OPEN)
"""The wanted formats that this build of Pillow supports."""

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
