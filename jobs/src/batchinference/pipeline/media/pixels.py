"""Converts a decoded image to the orientation, bit depth, mode and size that the job asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageCms
from PIL.ImageFile import ImageFile

from batchinference.pipeline.media.bit_depth import DeepImage, RawMode
from batchinference.pipeline.media.orientation import Orientation, oriented
from batchinference.pipeline.row_warnings import warn
from batchinference.spec.media import ImageFields
from batchinference.spec.warnings import WarningName

_GRAY_STEPS = {"L;2": 85, "L;4": 17}
"""Pillow multiplies gray pixels of 2 or 4 bits by these factors, but not the transparent value."""
_LARGER_WHITE = 257
"""The factor from white in 8 bits (255) to white in 16 bits (65535)."""


class Page(NamedTuple):
    """A decoded page of an image file. `raw` and `orientation` describe how the file stores the
    page. `again` opens the page again without decoding it."""

    image: Image.Image
    raw: RawMode
    orientation: Orientation
    again: Callable[[], ImageFile]

    @property
    def is_deep(self) -> bool:
        """Return whether the file has more than 8 bits per channel, or numbers with a sign."""
        return self.raw.is_deep or self.image.mode.startswith(("I", "F"))


def pixels_of(page: Page, options: ImageFields) -> np.ndarray:
    """Return the pixels of a page: height x width x channels (uint8). In the modes L (uint8) and
    I;16 (uint16), the shape is height x width. Raises ValueError if black and white are unknown."""
    if options.mode == "I;16":
        picture = Image.fromarray(_in_16_bits(page, options))
        picture = oriented(picture, page.orientation, options.orientation)
    else:
        picture = _deep(page, options).in_8_bits() if page.is_deep else _shallow(page)
        picture = oriented(picture, page.orientation, options.orientation)
        picture = in_mode(picture, options.mode, options.background)
    return np.asarray(resized(picture, options.size))


def _deep(page: Page, options: ImageFields) -> DeepImage:
    return DeepImage(page.image, page.raw, options, page.again)


def _shallow(page: Page) -> Image.Image:
    """Return an image with up to 8 bits, after scaling its transparent value like its pixels."""
    if "transparency" in page.image.info and page.raw.name in _GRAY_STEPS:
        page.image.info["transparency"] *= _GRAY_STEPS[page.raw.name]
    return page.image


def _in_16_bits(page: Page, options: ImageFields) -> np.ndarray:
    if page.is_deep:
        return _deep(page, options).in_16_bits()
    gray = in_mode(_shallow(page), "L", options.background)
    return np.asarray(gray).astype(np.uint16) * _LARGER_WHITE


def in_mode(picture: Image.Image, mode: str, background: str) -> Image.Image:
    """Return a picture in a mode of Pillow. Draw it over the background if the mode is not RGBA."""
    if picture.mode == "LAB":
        picture = _from_lab(picture)
    if picture.mode == "La":
        picture = picture.convert("LA")  # Pillow can convert La to no other mode
    if mode != "RGBA" and picture.has_transparency_data:
        picture = composited(picture, background)
    return picture if picture.mode == mode else picture.convert(mode)  # convert always copies


def composited(picture: Image.Image, background: str) -> Image.Image:
    """Return a picture in mode RGBA, drawn over a colour if a pixel is transparent."""
    layer = picture.convert("RGBA")
    lowest, _ = layer.getchannel("A").getextrema()
    if lowest == 255:
        return layer
    warn(WarningName.COMPOSITED)
    ground = Image.new("RGBA", layer.size, background)
    ground.alpha_composite(layer)
    return ground


def _from_lab(picture: Image.Image) -> Image.Image:
    lab, rgb = (ImageCms.createProfile(name) for name in ("LAB", "sRGB"))
    converted = ImageCms.profileToProfile(picture, lab, rgb, outputMode="RGB")
    return picture if converted is None else converted


def resized(picture: Image.Image, size: list[int] | None) -> Image.Image:
    """Return a picture, scaled to `size` ([height, width]), or unchanged if `size` is None."""
    if size is None:
        return picture
    height, width = size
    return picture.resize((width, height), Image.Resampling.BILINEAR)
