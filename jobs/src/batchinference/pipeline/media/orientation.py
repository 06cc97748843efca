"""Turns images and frames of videos upright, for example photos that a phone stores sideways."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from PIL.ExifTags import Base
from PIL.Image import Transpose

from batchinference.pipeline.row_warnings import warn
from batchinference.spec.warnings import WarningName

_TURNS = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
"""The operation that turns an image upright, by EXIF orientation."""
_INVERSE = {Transpose.ROTATE_90: Transpose.ROTATE_270, Transpose.ROTATE_270: Transpose.ROTATE_90}
_ROTATIONS = {90: Transpose.ROTATE_90, 180: Transpose.ROTATE_180, 270: Transpose.ROTATE_270}
_MIRRORS = (Transpose.FLIP_TOP_BOTTOM, Transpose.FLIP_LEFT_RIGHT)
TURNED_BY_DECODER = ("TIFF", "HEIF")
"""The formats whose decoder already turns images upright."""


class Orientation(NamedTuple):
    """The operations that turn an image upright. `done`: the decoder has already applied them."""

    turns: tuple[Transpose, ...] = ()
    done: bool = False


def orientation_of(image: Any) -> Orientation:
    """Return the operations that turn an image upright; none if its orientation is invalid. Call
    this before decoding, because the decoders of TURNED_BY_DECODER remove the orientation."""
    if image.format == "HEIF":
        file = getattr(image, "_heif_file", None)
        stored = getattr(file[image.tell()], "_c_image", None) if file else None
        turns = map(_heif_turn, getattr(stored, "transformations", ()))
        return Orientation(tuple(turn for turn in turns if turn is not None), done=True)
    try:
        turn = _TURNS.get(image.getexif().get(Base.Orientation))
    except Exception:  # noqa: BLE001 - invalid EXIF raises errors of many types
        return Orientation()
    return Orientation(() if turn is None else (turn,), image.format in TURNED_BY_DECODER)


def _heif_turn(transformation: tuple[Any, ...]) -> Transpose | None:
    kind, value = transformation[:2]
    if kind == "imir":
        return _MIRRORS[value]
    return _ROTATIONS.get(value) if kind == "irot" else None


def oriented(picture: Image.Image, stored: Orientation, option: str) -> Image.Image:
    """Return a decoded image: upright if the option is `apply`, else as the file stores it."""
    if not stored.turns:
        return picture
    if option == "apply":
        warn(WarningName.ROTATED)
        return picture if stored.done else _turned(picture, stored.turns)
    if not stored.done:
        return picture
    return _turned(picture, tuple(_INVERSE.get(turn, turn) for turn in reversed(stored.turns)))


def _turned(picture: Image.Image, turns: tuple[Transpose, ...]) -> Image.Image:
    for turn in turns:
        picture = picture.transpose(turn)
    return picture


class FrameTurn(NamedTuple):
    """The operations that turn a frame of a video upright. First, rows and columns are swapped if
    `transposed`. Then the order of rows and the order of columns may be reversed."""

    transposed: bool = False
    reversed_rows: bool = False
    reversed_columns: bool = False

    @classmethod
    def of(cls, matrix: bytes) -> FrameTurn:
        """Return the turn in a display matrix of FFmpeg, rounded to a multiple of 90 degrees."""
        a, b, _, c, d = struct.unpack_from("=5i", matrix)
        return cls(True, b < 0, c < 0) if abs(b) > abs(a) else cls(False, d < 0, a < 0)

    def applied_to(self, pixels: np.ndarray) -> np.ndarray:
        """Return the pixels of a frame (height x width x channels, any type), turned upright."""
        turned = pixels.swapaxes(0, 1) if self.transposed else pixels
        turned = turned[::-1] if self.reversed_rows else turned
        turned = turned[:, ::-1] if self.reversed_columns else turned
        return np.ascontiguousarray(turned)
