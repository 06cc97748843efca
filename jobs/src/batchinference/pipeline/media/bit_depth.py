"""Converts pixel values with more than 8 bits to 8 bits, or returns them as 16-bit numbers.

Files rarely state which value is white: cameras, scanners and microscopes store 10, 12 or 14 bits
in 16-bit numbers. If neither the file nor the job states white, the bit depth is derived from the
image. It is the smallest of 8, 10, 12, 14 and 16 that fits all values. White is its maximum."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from PIL import Image, ImageColor
from PIL.ExifTags import Base
from PIL.ImageFile import ImageFile

from batchinference.pipeline.row_warnings import warn
from batchinference.spec.media import ImageFields
from batchinference.spec.warnings import WarningName

# Of images with several 16-bit channels, Pillow keeps only the high byte of each value. If the low
# bytes are needed, the image is decoded again in the other byte order, which swaps the two bytes.

_OTHER_ORDER = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
_PLANES, _SEPARATE = Base.PlanarConfiguration, 2
"""The TIFF tag for the order of values, and its value if channels are stored one after another."""
FULL_WHITE = 65535
_PPM_CODECS = ("ppm", "ppm_plain")
_SIGNED = 2
"""The value of the TIFF tag SampleFormat for numbers with a sign."""
_JPEG2000_HEAD, _JPEG2000_SIZES = b"\xff\x4f\xff\x51", 40
"""The first bytes of a JPEG 2000 codestream, and the offset of the number of channels in it."""
_AVIF_HEAD, _AVIF_FLAGS, _AVIF_DEEP = b"av1C", 6, 0x40
"""The name of the box with AVIF properties, the offset of its flags, and the flag for > 8 bits."""


class RawMode(NamedTuple):
    """How a file stores the pixels of an image."""

    name: str = ""
    """Pillow's name of the raw mode, such as `RGB;16B`."""
    codec: str = ""
    """Pillow's name of the decoder, such as `libtiff`."""
    offset: int = 0
    """The position of the first pixel in the file, in bytes."""
    maximum: int = 0
    """The maximum value that a PPM file states; 0 for other files."""
    bits: int = 8
    """The bits per channel that a HEIC, AVIF or JPEG 2000 file states; 8 for other files."""
    signed: bool = False
    """Whether this is a TIFF file of 8-bit numbers with a sign."""

    @classmethod
    def of(cls, image: ImageFile, content: bytes) -> RawMode:
        """Return the raw mode of an image that is not decoded yet, from the bytes of its file."""
        bits = _stated_bits(image, content)
        if not image.tile:
            return cls(bits=bits)
        codec, _, offset, args = image.tile[0]
        name, *others = args if isinstance(args, tuple) else (args,)
        maximum = others[0] if codec in _PPM_CODECS else 0
        formats = getattr(image, "tag_v2", {}).get(Base.SampleFormat, ())
        signed = image.mode == "L" and formats == (_SIGNED,)
        return cls(str(name), codec, offset, maximum, bits, signed)

    @property
    def is_deep(self) -> bool:
        """Return whether the pixels have more than 8 bits per channel, or a sign."""
        if self.maximum > 255 or self.bits > 8 or self.signed:
            return True
        return ";16" in self.name and self.name != "BGR;16"  # BGR;16: channels share 16 bits

    @property
    def white(self) -> int | None:
        """Return the value of white, if the format states it."""
        if 255 < self.maximum < FULL_WHITE:
            return self.maximum
        if self.codec == "jpeg2k":
            return FULL_WHITE
        return 4095 if self.name == "I;12" else None


def _stated_bits(image: ImageFile, content: bytes) -> int:
    """Return the bits per channel that a HEIC, AVIF or JPEG 2000 file states; 8 for other files.
    Pillow may decode only 8 of them."""
    if image.format == "AVIF":
        at = content.find(_AVIF_HEAD) + _AVIF_FLAGS
        return 10 if content[at] & _AVIF_DEEP else 8  # the flag stands for 10 or 12 bits
    if image.format == "JPEG2000":
        at = content.find(_JPEG2000_HEAD) + _JPEG2000_SIZES
        channels = int.from_bytes(content[at : at + 2])
        return 1 + max(size & 0x7F for size in content[at + 2 : at + 2 + 3 * channels : 3])
    return int(image.info.get("bit_depth", 8))


def with_16_bit_planes(image: ImageFile) -> ImageFile:
    """Correct the raw modes of an image that is not decoded yet, and return the image. Without the
    correction, Pillow would decode separately stored 16-bit channels as 8-bit channels."""
    tags: Any = getattr(image, "tag_v2", {})
    if tags.get(_PLANES) == _SEPARATE and 16 in tags.get(Base.BitsPerSample, ()):
        suffix = ";16L" if tags.prefix == b"II" else ";16B"
        image.tile = [
            tile._replace(args=(f"{tile.args[0]}{suffix}", *tile.args[1:]))
            if isinstance(tile.args, tuple) and tile.args[0] in ("R", "G", "B", "A")
            else tile
            for tile in image.tile
        ]
    return image


def stored_values(
    image: Image.Image, raw: RawMode, again: Callable[[], ImageFile]
) -> np.ndarray | None:
    """Return the values of a decoded image in the type of its file; None if Pillow reads only 8
    bits of a value. The shape is height x width, or height x width x 3 or 4 channels. `again` opens
    the image again without decoding it. Raises ValueError if the values cannot be read."""
    if image.mode not in ("RGB", "RGBA"):
        return _other_values(np.asarray(image), raw)
    if raw.codec == "ppm":
        content = cast(io.BytesIO, again().fp).getvalue()
        shape = (image.height, image.width, 3)
        values = np.frombuffer(content, ">u2", math.prod(shape), raw.offset)
        return values.astype(np.uint16).reshape(shape)
    if raw.name == "LA;16B":
        return _gray_and_opacity(again())
    if raw.name[:-1] not in ("RGB;16", "RGBA;16", "RGBX;16", "R;16"):
        return None
    if raw.codec == "libtiff" and getattr(image, "tag_v2", {}).get(_PLANES) == _SEPARATE:
        raise ValueError(
            "its compressed channels are stored one after the other, and only their high bytes can "
            "be read. Store the channels of each pixel together"
        )
    other = again()
    other.tile = [tile._replace(args=_in_other_order(tile.args)) for tile in other.tile]
    high, low = np.asarray(image).astype(np.uint16), np.asarray(other)
    return np.asarray(np.bitwise_or(high << 8, low))


def _other_values(values: np.ndarray, raw: RawMode) -> np.ndarray | None:
    """Return the stored values of an image that is not RGB; None if Pillow kept only 8 bits."""
    if raw.name == "I;32N":  # unsigned, but Pillow has only a mode with a sign
        return values.view(np.uint32)
    if values.dtype == np.uint8:
        return values.view(np.int8) if raw.signed else None
    if values.dtype.kind == "u" or raw.name == "I;16B":
        return values.astype(np.uint16)  # in the byte order of this machine
    if raw.maximum:  # undo Pillow's scaling from raw.maximum to FULL_WHITE
        return np.rint(values * (raw.maximum / FULL_WHITE)).astype(np.uint16)
    return values


def _in_other_order(args: Any) -> Any:
    if isinstance(args, tuple):
        return (_in_other_order(args[0]), *args[1:])
    return args[:-1] + _OTHER_ORDER[args[-1]]


def _gray_and_opacity(image: ImageFile) -> np.ndarray:
    """Return the values of a PNG image of gray and opacity with 16 bits each, as 4 channels."""
    # decoded as 8-bit RGBA, the channels are the high and low bytes of gray, and of opacity
    image.tile = [tile._replace(args="RGBA") for tile in image.tile]
    pairs = np.asarray(image).astype(np.uint16)
    gray, opacity = ((pairs[:, :, at] << 8) | pairs[:, :, at + 1] for at in (0, 2))
    return np.dstack((gray, gray, gray, opacity))


_DEPTHS = (8, 10, 12, 14)
_FULL_DEPTH = 16
_WHITE_IS_ZERO = 0
_GRAY = np.array([0.299, 0.587, 0.114], np.float32)
"""The weights of red, green and blue in the brightness, as in Pillow."""
_ONLY_8_BITS = (
    "{}: only 8 bits per channel of this image can be read. Leave out the option, or store the "
    "image as PNG"
)


class DeepImage:
    """A decoded image with more than 8 bits per channel. `again` opens the image again without
    decoding it. The methods raise ValueError if the values of black and white are unknown."""

    def __init__(
        self, image: Image.Image, raw: RawMode, options: ImageFields, again: Callable[[], ImageFile]
    ) -> None:
        self._image, self._raw, self._options, self._again = image, raw, options, again
        self._transparent = image.info.get("transparency")
        tags = getattr(image, "tag_v2", {})
        self._inverted = tags.get(Base.PhotometricInterpretation) == _WHITE_IS_ZERO

    def in_8_bits(self) -> Image.Image:
        """Return the image with 8 bits per channel, and with its opacity if it has any."""
        channels = None if self._are_high_bytes_enough() else self._channels()
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
        """Return the brightness (height x width, uint16). Only the option `range` scales values."""
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
            red, green, blue, *_ = ImageColor.getrgb(self._options.background)
            background = float(np.array([red, green, blue]) @ _GRAY) * FULL_WHITE / 255
            gray = np.rint(gray * share + background * (1 - share))
        return gray.astype(np.uint16)

    def _are_high_bytes_enough(self) -> bool:
        """Return whether the high bytes, which Pillow has decoded, are already the 8-bit result.
        They are if a value needs more than 14 bits, because the bit depth is then 16."""
        if self._image.mode not in ("RGB", "RGBA") or self._options.range is not None:
            return False
        if self._transparent is not None or self._raw.white is not None:
            return False
        return bool(np.asarray(self._image)[:, :, :3].max() >> (_DEPTHS[-1] - 8))

    def _channels(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return the values of the colours, and the opacity (uint8; None if no pixel can be
        transparent). Return None instead if Pillow can only read 8 bits of each value."""
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
    """Return values, after scaling the first of `ends` to 0, and the second to `white`. Values
    outside of `ends` are clipped, and NaN becomes 0."""
    first, last = ends
    if not ((values >= first) & (values <= last)).all():
        warn(WarningName.OUT_OF_RANGE)
    precise = np.float64 if values.dtype.itemsize > 2 else np.float32
    scaled: np.ndarray = np.subtract(values, first, dtype=precise)
    scaled *= white / (last - first)
    np.nan_to_num(scaled, copy=False, nan=0, posinf=white, neginf=0)
    return scaled.clip(0, white).round()
