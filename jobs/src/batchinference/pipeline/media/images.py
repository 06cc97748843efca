"""Opens images from untrusted sources, decodes and encodes them with Pillow, and builds columns.

Pillow supports many formats and detects them by content, not by file name. One of them is
PostScript, for which Pillow starts Ghostscript. Therefore only formats that hold pixels are opened.
A test fails if other code calls `Image.open`.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image, ImageFile, UnidentifiedImageError

from batchinference.pipeline.errors import HEIC_EXTRA, missing_package
from batchinference.pipeline.media.cut_files import ACCEPT, completed
from batchinference.pipeline.media.orientation import TURNED_BY_DECODER, turns_of
from batchinference.pipeline.media.pages import ignored_images, pages_of
from batchinference.pipeline.media.pixels import Page, in_mode, pixels_of
from batchinference.pipeline.media.stored_values import RawMode, with_planes
from batchinference.pipeline.row_warnings import warn
from batchinference.spec.media import MAX_PIXELS, ImageFields, Mode
from batchinference.spec.warnings import WarningName

with suppress(ImportError):  # an optional library, for the pictures of phones
    from pillow_heif import register_heif_opener

    # Ray runs as many tasks as there are CPUs, so one thread per task is enough
    register_heif_opener(decode_threads=1, thumbnails=False)
Image.init()
_WANTED = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
FORMATS = tuple(name for name in _WANTED if name in Image.OPEN)
"""The wanted formats that this build of Pillow supports."""
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
CHANNELS = (1, 3, 4)
_DAMAGE = (
    *(OSError, SyntaxError, ValueError, EOFError, RuntimeError, IndexError, KeyError, TypeError),
    *(struct.error, zlib.error),
)
"""The errors of Pillow's decoders for files that are damaged."""
_REDUCING_DECODERS = ("JPEG", "MPO")
_MIN_BYTES = 128
"""The bytes of a damaged file from which pixels can be decoded. Black pixels show nothing."""

# an image above the limit raises an error, so the warning is redundant
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def open_image(content: bytes, max_pixels: int = MAX_PIXELS) -> ImageFile.ImageFile:
    """Return an image whose pixels are not decoded yet. Raises ValueError if it has more pixels
    than `max_pixels`, and OSError if the content is not an image."""
    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels  # Pillow has its own limit per process
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError:
        limit = f"max_pixels ({max_pixels})"
        raise ValueError(f"the picture has more pixels than {limit}") from None
    except UnidentifiedImageError:
        if "HEIF" not in FORMATS and content[8:12] in _HEIC_BRANDS:
            missing = missing_package("HEIC", "pillow_heif", HEIC_EXTRA, in_image=False)
            raise ValueError(missing) from None
        raise UnidentifiedImageError(f"cannot identify image file: {_cause_of(content)}") from None
    _check_size(image, max_pixels)
    return image


def _cause_of(content: bytes) -> str:
    """Return why Pillow does not know an image."""
    if not content:
        return "it is empty"
    if content.startswith(_TIFF):
        return "its header is damaged, or TIFF files with its bits and sample format are not read"
    return f"its first bytes are not those of a supported format ({', '.join(FORMATS)})"


def _check_size(image: Image.Image, max_pixels: int) -> None:
    if image.width * image.height > max_pixels:
        limit = f"max_pixels ({max_pixels})"
        raise ValueError(f"{image.width} x {image.height} pixels are more than {limit}")


def decode(content: bytes, options: ImageFields) -> np.ndarray:
    """Return the pixels of the first page of an image file: height x width x channels, uint8;
    height x width in mode L, and in mode I;16 (uint16).

    Raises an error if it cannot be decoded: ValueError if it has too many pixels, or if its values
    of black and white are unknown."""
    file = ImagePages(content, options)
    pixels = file.pixels(file.first, reduced=True)
    if len(file.numbers) > 1:
        warn(WarningName.PAGES_IGNORED, amount=len(file.numbers) - 1)
    return pixels


class ImagePages:
    """The pages of an image file, which are decoded one at a time. `numbers` are the numbers of its
    pages, and `first` is the number of the page that represents the file.

    Raises the errors of `decode`."""

    def __init__(self, content: bytes, options: ImageFields) -> None:
        self._content, self._options, self._is_cut = content, options, False
        try:
            self._image = open_image(content, options.max_pixels)
        except _DAMAGE:
            if options.truncated == "fail":
                raise
            self._content, self._is_cut = completed(content), True
            self._image = open_image(self._content, options.max_pixels)
        self._ignored = ignored_images(content) if self._image.format == "PPM" else 0
        self.numbers = pages_of(self._image)
        current = self._image.tell()
        self.first = current if current in self.numbers else self.numbers[0]

    def pixels(self, number: int, *, reduced: bool = False) -> np.ndarray:
        """Return the pixels of a page. With `reduced`, a JPEG decoder may skip details that a
        smaller size does not show."""
        is_cut = self._is_cut
        try:
            page = self._decoded(self._image, number, reduced=reduced)
        except _DAMAGE as error:
            if self._options.truncated == "fail":
                if "truncated" in str(error):
                    raise OSError(f"{error}. {ACCEPT}") from error
                raise
            page, is_cut = self._partly_decoded(number), True
        pixels = pixels_of(page, self._options)
        if is_cut:
            warn(WarningName.TRUNCATED)
        if self._ignored:
            warn(WarningName.PAGES_IGNORED, amount=self._ignored)
        return pixels

    def _decoded(self, image: ImageFile.ImageFile, number: int, *, reduced: bool = False) -> Page:
        self._seek(image, number)
        if reduced and self._options.size and image.format in _REDUCING_DECODERS:
            side = 2 * max(self._options.size)
            image.draft(self._options.mode, (side, side))
        raw = RawMode.of(image, self._content)
        turns = turns_of(image) if image.format in TURNED_BY_DECODER else None
        image.load()
        turns = turns_of(image) if turns is None else turns
        return Page(image, raw, turns, lambda: self._again(number))

    def _partly_decoded(self, number: int) -> Page:
        """Return a page of a damaged file. Raises an error if nothing of it can be decoded."""
        self._content = completed(self._content)
        image = self._again(number)
        raw = RawMode.of(image, self._content)
        try:
            return self._decoded(image, number)
        except _DAMAGE:
            image.tile = []  # the pixels up to the damage are decoded
            has_data = 0 < raw.offset < len(self._content) - _MIN_BYTES
            if not has_data and not np.asarray(image).any():
                raise
        turns = turns_of(image)._replace(done=False)
        if image.mode in ("RGB", "RGBA"):
            # Pillow's 8 bits, because further bits are damaged, too
            raw = RawMode(bits=16 if raw.is_deep else 8)
        # the copy has the size of the pixels. Pillow turns only images without damage
        return Page(image.copy(), raw, turns, lambda: self._again(number))

    def _again(self, number: int) -> ImageFile.ImageFile:
        image = open_image(self._content, self._options.max_pixels)
        self._seek(image, number)
        return image

    def _seek(self, image: ImageFile.ImageFile, number: int) -> None:
        if image.tell() != number:
            image.seek(number)
        _check_size(image, self._options.max_pixels)
        with_planes(image)


def to_arrow(pictures: list[np.ndarray], size: list[int] | None) -> pa.Array:
    """Return images as one column, with a fixed shape if they were resized to `size`."""
    from ray.data.extensions import ArrowTensorArray, ArrowVariableShapedTensorArray

    if size is not None:
        return ArrowTensorArray.from_numpy(np.stack(pictures))
    return ArrowVariableShapedTensorArray.from_numpy(pictures)


def is_pixels(value: Any) -> bool:
    """Return whether a value is an array that can be encoded as an image: uint8, height x width, or
    height x width x 1, 3 or 4 channels."""
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or not value.size:
        return False
    return value.ndim == 2 or (value.ndim == 3 and value.shape[2] in CHANNELS)


def encode(value: Any, file_format: str) -> bytes:
    """Return an image as the bytes of a file.

    Raises ValueError if the value is not an image."""
    if isinstance(value, bytes):
        return _encoded_again(value, file_format)
    if not is_pixels(value):
        array = isinstance(value, np.ndarray)
        found = f"{value.dtype} {value.shape}" if array else type(value).__name__
        raise ValueError(
            f"{found} is no image, which is bytes or uint8 pixels: height x width, or height x "
            "width x 1, 3 or 4 channels"
        )
    pixels = value[:, :, 0] if value.ndim == 3 and value.shape[2] == 1 else value
    return _saved(Image.fromarray(np.ascontiguousarray(pixels)), file_format)


def _encoded_again(content: bytes, file_format: str) -> bytes:
    try:
        with open_image(content) as image:
            if (image.format or "").lower() == file_format:
                return content
            transparent = image.has_transparency_data and file_format != "jpeg"
            gray = image.mode.startswith(("1", "L", "I")) and image.mode != "LAB"
        mode: Mode = "RGBA" if transparent else "L" if gray else "RGB"
        return _saved(Image.fromarray(decode(content, ImageFields(mode=mode))), file_format)
    except OSError as error:
        raise ValueError(f"bytes are no image: {error}") from None


def _saved(image: Image.Image, file_format: str) -> bytes:
    if file_format == "jpeg" and image.mode == "RGBA":
        image = in_mode(image, "RGB", "white")  # JPEG has no transparency
    buffer = io.BytesIO()
    image.save(buffer, file_format)
    return buffer.getvalue()
