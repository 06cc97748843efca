"""Reduces pixel values with more than 8 bits to 8 bits, or gives them as 16-bit numbers.

Files rarely state which value is white: cameras, scanners and microscopes store 10, 12 or 14 bits
in 16-bit numbers. If neither the file nor the job states it, white is the largest number of the
smallest usual depth that holds all values of the image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image, ImageColor
from PIL.ExifTags import Base
from PIL.ImageFile import ImageFile

from batchinference.pipeline.media.stored_values import FULL_WHITE, RawMode, stored_values
from batchinference.pipeline.row_warnings import warn
from batchinference.spec.media import ImageFields
from batchinference.spec.warnings import WarningName

_DEPTHS = (8, 10, 12, 14)
_FULL_DEPTH = 16
_WHITE_IS_ZERO = 0
_GRAY = np.array([0.299, 0.587, 0.114], np.float32)
"""The shares of red, green and blue in the brightness, as Pillow computes it."""
_ONLY_8_BITS = (
    "{}: only 8 bits per channel of this image can be read. Leave out the option, or store the "
    "image as PNG"
)


class DeepImage:
    """A decoded image with more than 8 bits per channel. `again` returns it before it is decoded.

    Raises ValueError if the values of black and white are unknown."""

    def __init__(
        self, image: Image.Image, raw: RawMode, options: ImageFields, again: Callable[[], ImageFile]
    ) -> None:
        self._image, self._raw, self._options, self._again = image, raw, options, again
        self._transparent = image.info.get("transparency")
        tags = getattr(image, "tag_v2", {})
        self._inverted = tags.get(Base.PhotometricInterpretation) == _WHITE_IS_ZERO

    def in_8_bits(self) -> Image.Image:
        """Return the image with 8 bits per channel, and with its opacity if it has any."""
        channels = None if self._has_bright_high_bytes() else self._channels()
        if channels is None:
            if self._options.range is not None:
                raise ValueError(_ONLY_8_BITS.format("range"))
            warn(WarningName.DEPTH_REDUCED)
            return self._image
        colours, opacity = channels
        reduced = self._reduced(colours)
        if self._inverted:
            reduced = 255 - reduced
        return Image.fromarray(reduced if opacity is None else np.dstack((reduced, opacity)))

    def in_16_bits(self) -> np.ndarray:
        """Return the brightness: height x width, uint16. Without the option `range`, it is as the
        file stores it."""
        channels = self._channels()
        if channels is None:
            raise ValueError(_ONLY_8_BITS.format("mode I;16"))
        colours, opacity = channels
        gray = np.rint(colours @ _GRAY) if colours.ndim == 3 else colours
        if self._options.range is not None:
            gray = _scaled(gray, self._options.range, FULL_WHITE)
        elif colours.dtype != np.uint16:
            raise ValueError(self._range_is_unknown())
        if self._inverted:
            scaled = self._options.range is not None
            gray = (FULL_WHITE if scaled else self._raw.white or FULL_WHITE) - gray
        if opacity is not None and opacity.min() < 255:
            warn(WarningName.COMPOSITED)
            share = opacity.astype(np.float32) / 255
            gray = np.rint(gray * share + self._background * (1 - share))
        return gray.astype(np.uint16)

    @property
    def _background(self) -> float:
        red, green, blue, *_ = ImageColor.getrgb(self._options.background)
        return float(np.array([red, green, blue]) @ _GRAY) * FULL_WHITE / 255

    def _has_bright_high_bytes(self) -> bool:
        """Return whether the high bytes, which Pillow has decoded, are the result: so much of the
        full depth is in use that no smaller depth holds all values."""
        if self._image.mode not in ("RGB", "RGBA") or self._options.range is not None:
            return False
        if self._transparent is not None or self._raw.white is not None:
            return False
        return bool(np.asarray(self._image)[:, :, :3].max() >> (_DEPTHS[-1] - 8))

    def _channels(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return the values without opacity, and the opacity (uint8) if a pixel may be transparent;
        None if the values cannot be read."""
        values = stored_values(self._image, self._raw, self._again)
        if values is None:
            return None
        if values.ndim == 3 and values.shape[2] == 4:
            return values[:, :, :3], (values[:, :, 3] >> 8).astype(np.uint8)
        if self._transparent is None:
            return values, None
        same = values == self._transparent
        same = same.all(axis=2) if same.ndim == 3 else same
        return values, np.where(same, 0, 255).astype(np.uint8)

    def _reduced(self, colours: np.ndarray) -> np.ndarray:
        if self._options.range is not None:
            return _scaled(colours, self._options.range, 255).astype(np.uint8)
        if self._raw.white is not None:
            warn(WarningName.DEPTH_REDUCED)
            return _scaled(colours, (0, self._raw.white), 255).astype(np.uint8)
        if colours.dtype != np.uint16:
            raise ValueError(self._range_is_unknown())
        largest = int(colours.max())
        depth = next((depth for depth in _DEPTHS if largest < 1 << depth), _FULL_DEPTH)
        if depth > 8:
            warn(WarningName.DEPTH_REDUCED)
        if depth < _FULL_DEPTH and largest:
            warn(WarningName.RANGE_ASSUMED)
        return (colours >> (depth - 8)).astype(np.uint8)

    def _range_is_unknown(self) -> str:
        kind = "floating numbers" if self._image.mode == "F" else "signed or 32-bit integers"
        return (
            f"its pixels are {kind}, and their values of black and white are unknown. Set the "
            "option range to these values, such as [0, 1]"
        )


def _scaled(values: np.ndarray, ends: Sequence[float], white: int) -> np.ndarray:
    """Return values as numbers from 0 for the first end to `white` for the second one. NaN becomes
    0, and values outside of the ends are clipped."""
    first, last = ends
    if not ((values >= first) & (values <= last)).all():
        warn(WarningName.OUT_OF_RANGE)
    precise = np.float64 if values.dtype.itemsize > 2 else np.float32
    scaled: np.ndarray = np.subtract(values, first, dtype=precise)
    scaled *= white / (last - first)
    np.nan_to_num(scaled, copy=False, nan=0, posinf=white, neginf=0)
    return scaled.clip(0, white).round()
