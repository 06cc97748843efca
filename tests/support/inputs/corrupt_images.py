"""Ten thousand images. 37 of them cannot be decoded, for seven different reasons."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from support.inputs.photographs import photograph

IMAGES, CORRUPT = 10_000, 37
SIDE = 48
FOLDERS = 10


def encoded(pixels: np.ndarray, format_: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format_)
    return buffer.getvalue()


def _broken_chunk(pixels: np.ndarray) -> bytes:
    """Return a PNG with a wrong checksum of its pixels."""
    content = bytearray(encoded(pixels, "PNG"))
    content[content.index(b"IDAT") + 40] ^= 0xFF
    return bytes(content)


def _bomb(_: np.ndarray) -> bytes:
    """Return a small PNG whose header declares ten billion pixels."""
    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    sized = struct.pack(">I", len(header)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return b"\x89PNG\r\n\x1a\n" + sized


DAMAGES: dict[str, Callable[[np.ndarray], bytes]] = {
    "empty": lambda pixels: b"",
    "text": lambda pixels: b"<html>404 Not Found</html>",
    "noise": lambda pixels: np.random.default_rng(1).bytes(500),
    "truncated JPEG": lambda pixels: encoded(pixels, "JPEG")[:-400],
    "truncated PNG": lambda pixels: encoded(pixels, "PNG")[:200],
    "broken chunk": _broken_chunk,
    "bomb": _bomb,
}


def ten_thousand_images(directory: Path) -> list[str]:
    """Write the images in folders; return the relative paths of the corrupt ones."""
    generator = np.random.default_rng(37)
    source = photograph("astronaut")
    chosen = set(generator.choice(IMAGES, CORRUPT, replace=False).tolist())
    damages = list(DAMAGES.values())
    for folder in range(FOLDERS):
        (directory / f"{folder}").mkdir(parents=True)
    corrupt = []
    for number in range(IMAGES):
        top, left = generator.integers(0, source.shape[0] - SIDE, 2)
        pixels = source[top : top + SIDE, left : left + SIDE]
        path = f"{number % FOLDERS}/{number:05d}.jpg"
        if number in chosen:
            content = damages[len(corrupt) % len(damages)](pixels)
            corrupt.append(path)
        else:
            content = encoded(pixels, "JPEG")
        (directory / path).write_bytes(content)
    return sorted(corrupt)
