"""Reads the pixel values of images with more than 8 bits per channel.

Pillow reads several channels of 16 bits as their high bytes. The low bytes are the high bytes for
the other byte order, so the image is decoded again in that order if they are needed.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
from PIL import Image
from PIL.ExifTags import Base
from PIL.ImageFile import ImageFile

_OTHER_ORDER = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
_PLANES, _SEPARATE = Base.PlanarConfiguration, 2
"""The tag and value of a TIFF file whose channels are stored one after the other."""
FULL_WHITE = 65535
_PPM_CODECS = ("ppm", "ppm_plain")
_SIGNED = 2
"""The value of a tag of a TIFF file whose numbers have a sign."""
_JPEG2000_HEAD, _JPEG2000_SIZES = b"\xff\x4f\xff\x51", 40
"""The beginning of the pixels of a JPEG 2000 file, and the offset of the number of channels."""
_AVIF_HEAD, _AVIF_FLAGS, _AVIF_DEEP = b"av1C", 6, 0x40


class RawMode(NamedTuple):
    """How a file stores the pixels of an image: the name and the codec that Pillow uses, the offset
    of the pixels, the maximum value that a PPM file states, the bits per channel that other files
    state, and whether a TIFF file has 8 bits with a sign."""

    name: str = ""
    codec: str = ""
    offset: int = 0
    maximum: int = 0
    bits: int = 8
    signed: bool = False

    @classmethod
    def of(cls, image: ImageFile, content: bytes) -> RawMode:
        """Return the raw mode of an image that is not decoded yet, from the content of a file."""
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
        return ";16" in self.name and self.name != "BGR;16"  # which has 16 bits for all channels

    @property
    def white(self) -> int | None:
        """Return the value of white, if the format states it."""
        if 255 < self.maximum < FULL_WHITE:
            return self.maximum
        return {"jpeg2k": FULL_WHITE}.get(self.codec, {"I;12": 4095}.get(self.name))


def _stated_bits(image: ImageFile, content: bytes) -> int:
    """Return the bits per channel that a HEIC, AVIF or JPEG 2000 file states, of which Pillow may
    keep 8; 8 for other files."""
    if image.format == "AVIF":
        at = content.find(_AVIF_HEAD) + _AVIF_FLAGS
        return 10 if content[at] & _AVIF_DEEP else 8  # or 12
    if image.format == "JPEG2000":
        at = content.find(_JPEG2000_HEAD) + _JPEG2000_SIZES
        channels = int.from_bytes(content[at : at + 2])
        return 1 + max(size & 0x7F for size in content[at + 2 : at + 2 + 3 * channels : 3])
    return int(image.info.get("bit_depth", 8))


def with_planes(image: ImageFile) -> ImageFile:
    """Return an image that is not decoded yet. Pillow takes separate channels of 16 bits for
    channels of 8 bits, so their raw modes are corrected."""
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
    """Return the values of a decoded image as its file stores them: height x width, or height x
    width x 3 or 4 channels. None if Pillow reduces them in a way that cannot be avoided. `again`
    returns the image before it is decoded. Raises ValueError if they cannot be read."""
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
    high, low = np.asarray(image), _decoded_in_other_order(again())
    both: np.ndarray = np.bitwise_or(high.astype(np.uint16) << 8, low)
    return both


def _other_values(values: np.ndarray, raw: RawMode) -> np.ndarray | None:
    """Return the values of an image that is not RGB. None if they are the high bytes."""
    if raw.name == "I;32N":  # Pillow has no mode for numbers without a sign
        return values.view(np.uint32)
    if values.dtype == np.uint8:
        return values.view(np.int8) if raw.signed else None
    if values.dtype.kind == "u" or raw.name == "I;16B":
        return values.astype(np.uint16)  # in the byte order of this machine
    if raw.maximum:  # Pillow scales them to FULL_WHITE
        return np.rint(values * (raw.maximum / FULL_WHITE)).astype(np.uint16)
    return values


def _decoded_in_other_order(image: ImageFile) -> np.ndarray:
    image.tile = [tile._replace(args=_in_other_order(tile.args)) for tile in image.tile]
    return np.asarray(image)


def _in_other_order(args: Any) -> Any:
    if isinstance(args, tuple):
        return (_in_other_order(args[0]), *args[1:])
    return args[:-1] + _OTHER_ORDER[args[-1]]


def _gray_and_opacity(image: ImageFile) -> np.ndarray:
    """Return the values of a PNG image of gray and opacity with 16 bits each, as 4 channels."""
    image.tile = [tile._replace(args="RGBA") for tile in image.tile]  # the same number of bytes
    pairs = np.asarray(image).astype(np.uint16)
    gray, opacity = ((pairs[:, :, at] << 8) | pairs[:, :, at + 1] for at in (0, 2))
    return np.dstack((gray, gray, gray, opacity))
