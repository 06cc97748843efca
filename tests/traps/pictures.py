"""Builds pictures with generated pixels."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from support.inputs.media_files import saved
from traps.case import Content

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def picture(
    color: Any = RED,
    kind: str = "PNG",
    *,
    mode: str = "RGB",
    size: tuple[int, int] = (8, 8),
    **options: Any,
) -> Content:
    """Return a picture of one colour. `size` is its width and height."""
    return partial(_picture, color, kind, mode, size, options)


def _picture(
    color: Any, kind: str, mode: str, size: tuple[int, int], options: Mapping[str, Any]
) -> bytes:
    return saved(Image.new(mode, size, color), kind, **options)


def pixels(array: Any, kind: str = "PNG", **options: Any) -> Content:
    """Return an array of pixels as a picture."""
    return lambda: saved(Image.fromarray(np.asarray(array)), kind, **options)


def photo(
    kind: str = "JPEG", seed: int = 0, size: tuple[int, int] = (40, 60), **options: Any
) -> bytes:
    """Return a picture of noise, of several kilobytes. `size` is its height and width."""
    noise = np.random.default_rng(seed).integers(0, 255, (*size, 3), dtype="uint8")
    return saved(Image.fromarray(noise), kind, **options)


def halves(kind: str = "PNG", **options: Any) -> Content:
    """Return a picture of 32 x 16 pixels whose left half is red and whose right half is blue."""
    image = np.zeros((16, 32, 3), "uint8")
    image[:, :16, 0], image[:, 16:, 2] = 255, 255
    return pixels(image, kind, **options)


def hidden(
    color: tuple[int, int, int], mode: str = "RGBA", kind: str = "PNG", **options: Any
) -> Content:
    """Return a picture of one blue pixel; all others are transparent and have this colour."""

    def make() -> bytes:
        image = Image.new("RGBA", (8, 8), (*color, 0))
        image.putpixel((7, 7), (0, 0, 255, 255))
        return saved(image if mode == "RGBA" else image.convert(mode), kind, **options)

    return make


def png(width: int, height: int, depth: int, color: int, rows: bytes, *chunks: bytes) -> bytes:
    """Return a PNG file, which Pillow does not write with these depths."""
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(rows))
    return b"".join(
        [b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", header), *chunks, data, chunk(b"IEND", b"")]
    )


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def gray_16_transparent() -> bytes:
    """Return a gray PNG of 16 bits whose value 100 is transparent, and which has no other."""
    rows = (b"\0" + struct.pack(">H", 100) * 8) * 8
    return png(8, 8, 16, 0, rows, chunk(b"tRNS", struct.pack(">H", 100)))


def color_16() -> bytes:
    """Return a colour PNG of 16 bits per channel, from black to white."""
    values = np.linspace(0, 65535, 64).reshape(8, 8).astype(">u2")
    rows = b"".join(b"\0" + np.repeat(row[:, None], 3, 1).tobytes() for row in values)
    return png(8, 8, 16, 2, rows)


def big_endian(array: np.ndarray) -> bytes:
    """Return a TIFF of 16 bits in the byte order of Motorola."""
    data = array.astype(">u2").tobytes()
    height, width = array.shape
    values = {256: width, 257: height, 258: 16, 259: 1, 262: 1, 273: 8, 277: 1, 278: height}
    values |= {279: len(data)}
    fields = b"".join(struct.pack(">HHII", tag, 4, 1, value) for tag, value in values.items())
    count = struct.pack(">H", len(values))
    return b"MM\0*" + struct.pack(">I", 8 + len(data)) + data + count + fields + b"\0\0\0\0"


def palette(kind: str) -> Content:
    """Return a picture of one blue pixel; the other colour of its palette is transparent."""

    def make() -> bytes:
        image = Image.new("P", (8, 8), 0)
        image.putpalette([240, 30, 10, *BLUE])
        image.putpixel((7, 7), 1)
        return saved(image, kind, transparency=0)

    return make


def red_palette() -> bytes:
    """Return a red picture whose palette has four colours."""
    image = Image.new("P", (8, 8), 3)
    image.putpalette([0, 0, 0] * 3 + [*RED])
    return saved(image, "PNG")


def frames_of(kind: str, *colors: Any, **options: Any) -> Content:
    """Return a picture with a page or frame of each colour."""

    def make() -> bytes:
        first, *others = (Image.new("RGB", (8, 8), color) for color in colors)
        return saved(first, kind, save_all=True, append_images=others, **options)

    return make


def two_photos(kind: str) -> bytes:
    """Return a picture with two frames of noise."""
    first, second = (Image.open(io.BytesIO(photo("PNG", seed))) for seed in (0, 1))
    return saved(first, kind, save_all=True, append_images=[second])


def heic() -> bytes:
    """Return a red HEIC picture, or only its beginning if the library for it is not installed."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 64
    register_heif_opener()
    return _picture(RED, "HEIF", "RGB", (8, 8), {"quality": 100})
