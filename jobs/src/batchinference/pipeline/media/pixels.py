"""Converts a decoded image to the orientation, bit depth, mode and size that the job asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageCms
from PIL.ImageFile import ImageFile

from batchinference.pipeline.media.bit_depth import DeepImage, RawMode
from batchinference.pipeline.media.orientation import Orientation, oriented
from batchinference.pipeline.row_warnings import warn
from batchinference.spec.media import ImageFields
from batchinference.spec.warnings import WarningName

_GRAY_STEPS = {"L;2": 85, "L;4": 17}
"""The factors by which Pillow multiplies gray values with 2 or 4 bits. It does not multiply the
value that is transparent."""
_LARGER_WHITE = 257
"""How many times larger white is in 16 bits than in 8 bits."""


class Page(NamedTuple):
    """A decoded page of an image file. `raw`, `turns` and `again` describe it before it was
    decoded; `again` returns it before it is decoded."""

    image: Image.Image
    raw: RawMode
    turns: Orientation
    again: Callable[[], ImageFile]

    @property
    def is_deep(self) -> bool:
        """Return whether the file has more than 8 bits per channel, or numbers with a sign."""
        return self.raw.is_deep or self.image.mode.startswith(("I", "F"))


def pixels_of(page: Page, options: ImageFields) -> np.ndarray:
    """Return the pixels of a page: height x width x channels, uint8; height x width in mode L, and
    in mode I;16 (uint16). Raises ValueError if the values of black and white are unknown."""
    if options.mode == "I;16":
        picture = Image.fromarray(_in_16_bits(page, options))
        picture = oriented(picture, page.turns, options.orientation)
    else:
        picture = _deep(page, options).in_8_bits() if page.is_deep else _shallow(page)
        picture = oriented(picture, page.turns, options.orientation)
        picture = in_mode(picture, options.mode, options.background)
    return np.asarray(resized(picture, options.size))


def _deep(page: Page, options: ImageFields) -> DeepImage:
    return DeepImage(page.image, page.raw, options, page.again)


def _shallow(page: Page) -> Image.Image:
    """Return an image with 8 bits per channel. Its transparent value is a pixel value."""
    if "transparency" in page.image.info and page.raw.name in _GRAY_STEPS:
        page.image.info["transparency"] *= _GRAY_STEPS[page.raw.name]
    return page.image


def _in_16_bits(page: Page, options: ImageFields) -> np.ndarray:
    if page.is_deep:
        return _deep(page, options).in_16_bits()
    gray = in_mode(_shallow(page), "L", options.background)
    return np.asarray(gray).astype(np.uint16) * _LARGER_WHITE


def in_mode(picture: Image.Image, mode: str, background: str) -> Image.Image:
    """Return a picture in a mode of Pillow. Transparent pixels are drawn over the background,
    unless the mode is RGBA."""
    if picture.mode == "LAB":
        picture = _from_lab(picture)
    if picture.mode == "La":  # the only form to which Pillow converts it
        picture = picture.convert("LA")
    if mode != "RGBA" and picture.has_transparency_data:
        picture = composited(picture, background)
    return picture if picture.mode == mode else picture.convert(mode)  # which copies it


def composited(picture: Image.Image, background: str) -> Image.Image:
    """Return a picture drawn over a colour. It is the same picture if no pixel is transparent."""
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
    """Return a picture with a height and width in pixels, or the same picture for None."""
    if size is None:
        return picture
    height, width = size
    return picture.resize((width, height), Image.Resampling.BILINEAR)
