"""Opens, decodes and encodes untrusted images with Pillow, and puts their pixels into columns.

Pillow detects formats by content, not by file name, and it starts Ghostscript for PostScript files.
Therefore only formats that contain pixels are opened. A test finds other uses of `Image.open`."""

from __future__ import annotations

import io
import re
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image, ImageFile, UnidentifiedImageError
from PIL.ExifTags import Base

from batchinference.pipeline.error_classification import is_about_the_file
from batchinference.pipeline.errors import HEIC_EXTRA, missing_package
from batchinference.pipeline.media.bit_depth import RawMode, with_16_bit_planes
from batchinference.pipeline.media.orientation import TURNED_BY_DECODER, orientation_of
from batchinference.pipeline.media.pixels import Page, in_mode, pixels_of
from batchinference.pipeline.media.truncated_files import (
    ACCEPT,
    is_truncated_animation,
    with_added_end,
)
from batchinference.pipeline.ray_on_first_use import ray_data_compat
from batchinference.pipeline.row_warnings import RowWarning, collect_warnings, warn
from batchinference.spec.media import MAX_PIXELS, ImageFields, Mode
from batchinference.spec.warnings import WarningName

_SMALLER, _MASK = 1, 4
"""Flags in the subfile type of a TIFF page: a smaller version, or a mask, of another page."""
_MPO_ENTRIES = 0xB002
_GAP = rb"(?:\s|#[^\r\n]*[\r\n])+"
_NETPBM = re.compile(rb"P(?:4|([56]))%b(\d{1,9})%b(\d{1,9})(?(1)%b(\d{1,9}))\s" % ((_GAP,) * 3))
"""The header of a binary Netpbm image: kind, width, height, and (if not 1-bit) value of white."""


def pages_of(image: Image.Image) -> list[int]:
    """Return the numbers of the pages of an image file that is not decoded yet. Pages that cannot
    be decoded are included, but previews and masks are not. Raises ValueError for a raw file of a
    camera, because only its preview can be read."""
    if image.format == "TIFF":
        pages = _tiff_pages(image)
        if not pages and Base.SubIFDs in getattr(image, "tag_v2", ()):
            raise ValueError(
                "only a thumbnail of the photograph can be read, as in most raw files of cameras. "
                "Convert it to TIFF or JPEG"
            )
        return pages or [0]
    pages = list(range(getattr(image, "n_frames", 1)))
    if image.format == "MPO":
        entries = getattr(image, "mpinfo", {}).get(_MPO_ENTRIES, [])
        kinds = [str(entry.get("Attribute", {}).get("MPType")) for entry in entries]
        pages = [page for page in pages if page == 0 or "Thumbnail" not in kinds[page]]
    return pages


def _tiff_pages(image: Any) -> list[int]:
    """Return the numbers of the pages of a TIFF file, up to and including the first damaged one."""
    pages, damaged = [], False
    for page in count():
        try:
            image.seek(page)
        except EOFError:
            break
        except SyntaxError:  # Pillow does not know the pixel format of this page
            pass
        except (OSError, TypeError, ValueError, KeyError):
            damaged = True
        if damaged or not int(image.tag_v2.get(Base.NewSubfileType, 0)) & (_SMALLER | _MASK):
            pages.append(page)
        if damaged:
            break
    image.seek(0)
    return pages


def ignored_images(content: bytes) -> int:
    """Return how many images in a PPM file Pillow does not read: all images after the first one."""
    at, images = 0, 0
    while head := _NETPBM.match(content, at):
        kind, width, height, white = head.groups()
        samples = int(width) * (3 if kind == b"6" else 1)
        row = samples * (2 if int(white) > 255 else 1) if kind else (samples + 7) // 8
        at = head.end() + row * int(height)
        images += 1
    return max(0, images - 1)


def _ignored_channels(image: Any) -> int:
    """Return the number of channels of a TIFF page that Pillow skips: their meaning is unknown."""
    extra = image.tag_v2.get(Base.ExtraSamples, ()) if image.format == "TIFF" else ()
    return int(extra.count(0))


with suppress(ImportError):  # an optional library, for photos of phones
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
"""Black pixels of a damaged file count as decoded if the file has more bytes of pixel data. In a
shorter file, pixels may be black because the decoder has not written them."""

# an image above the limit raises an error, so Pillow's warning is redundant
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def open_image(
    content: bytes, max_pixels: int = MAX_PIXELS, formats: tuple[str, ...] = FORMATS
) -> ImageFile.ImageFile:
    """Return an image that is not decoded yet. Raises ValueError if it has more than `max_pixels`
    pixels or needs a missing library. Raises OSError if the content is not an image."""
    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels  # Pillow has its own limit per process
    try:
        image = Image.open(io.BytesIO(content), formats=formats)
    except Image.DecompressionBombError:
        raise ValueError(f"the picture has more pixels than maxPixels ({max_pixels})") from None
    except UnidentifiedImageError:
        if "HEIF" not in formats and content[8:12] in _HEIC_BRANDS:
            missing = missing_package("HEIC", "pillow_heif", HEIC_EXTRA, in_image=False)
            raise ValueError(missing) from None
        raise UnidentifiedImageError(f"cannot identify image file: {_cause_of(content)}") from None
    _check_size(image, max_pixels)
    return image


def _cause_of(content: bytes) -> str:
    """Return the reason why Pillow cannot open a file."""
    if not content:
        return "it is empty"
    if content.startswith(_TIFF):
        return "its header is damaged, or TIFF files with its bits and sample format are not read"
    return f"its first bytes are not those of a supported format ({', '.join(FORMATS)})"


def _check_size(image: Image.Image, max_pixels: int) -> None:
    if image.width * image.height > max_pixels:
        limit = f"maxPixels ({max_pixels})"
        raise ValueError(f"{image.width} x {image.height} pixels are more than {limit}")


def decode(content: bytes, options: ImageFields) -> np.ndarray:
    """Return the pixels of the first page of an image file, in the shape and type of `pixels_of`.
    Raises ValueError if the page is too large or its white is unknown. Raises other errors for
    damage."""
    file = ImagePages(content, options)
    pixels = file.pixels(file.first, reduced=True)
    if len(file.numbers) > 1:
        warn(WarningName.PAGES_IGNORED, amount=len(file.numbers) - 1)
    return pixels


class ImagePages:
    """Decodes the pages of an image file, one at a time. `numbers` are the numbers of the pages.
    `first` is the number of the page that `decode` returns. Raises the errors of `decode`."""

    def __init__(self, content: bytes, options: ImageFields) -> None:
        self._content, self._options, self._is_cut = content, options, False
        try:
            self._image = open_image(content, options.max_pixels)
        except _DAMAGE:
            if options.truncated == "fail":
                raise
            self._content, self._is_cut = with_added_end(content), True
            self._image = open_image(self._content, options.max_pixels)
        self._ignored = ignored_images(content) if self._image.format == "PPM" else 0
        self.numbers = pages_of(self._image)
        current = self._image.tell()
        self.first = current if current in self.numbers else self.numbers[0]

    def pixels(self, number: int, *, reduced: bool = False) -> np.ndarray:
        """Return the pixels of a page, in the shape and type that `decode` returns. With `reduced`,
        a JPEG decoder may skip details that are not visible in the wanted size."""
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
        if ignored := self._ignored + _ignored_channels(self._image):
            warn(WarningName.PAGES_IGNORED, amount=ignored)
        return pixels

    def _decoded(self, image: ImageFile.ImageFile, number: int, *, reduced: bool = False) -> Page:
        self._seek(image, number)
        if reduced and self._options.size and image.format in _REDUCING_DECODERS:
            side = 2 * max(self._options.size)
            image.draft(self._options.mode, (side, side))
        raw = RawMode.of(image, self._content)
        early = orientation_of(image) if image.format in TURNED_BY_DECODER else None
        image.load()
        orientation = orientation_of(image) if early is None else early
        return Page(image, raw, orientation, lambda: self._again(number))

    def _partly_decoded(self, number: int) -> Page:
        """Return the decodable part of a damaged page. Raises an error if it has no such part."""
        self._content = with_added_end(self._content)
        image = self._again(number)
        raw = RawMode.of(image, self._content)
        try:
            return self._decoded(image, number)
        except _DAMAGE:
            image.tile = []  # the pixels before the damage are decoded, so decode no more
            has_data = 0 < raw.offset < len(self._content) - _MIN_BYTES
            if not has_data and not np.asarray(image).any():
                raise
        orientation = orientation_of(image)._replace(done=False)
        if image.mode in ("RGB", "RGBA"):
            # use the 8 bits that Pillow has decoded: decoding again would fail at the damage
            raw = RawMode(bits=16 if raw.is_deep else 8)
        # the copy has the size before turning, because Pillow turns only undamaged images
        return Page(image.copy(), raw, orientation, lambda: self._again(number))

    def _again(self, number: int) -> ImageFile.ImageFile:
        image = open_image(self._content, self._options.max_pixels)
        self._seek(image, number)
        return image

    def _seek(self, image: ImageFile.ImageFile, number: int) -> None:
        if image.tell() != number:
            image.seek(number)
        _check_size(image, self._options.max_pixels)
        with_16_bit_planes(image)


def to_arrow(pictures: list[np.ndarray], size: list[int] | None) -> pa.Array:
    """Return images as a column of tensors. They have a fixed shape if `size` is not None."""
    if size is not None:
        return ray_data_compat().ArrowTensorArray.from_numpy(np.stack(pictures))
    return ray_data_compat().ArrowVariableShapedTensorArray.from_numpy(pictures)


def is_pixels(value: Any) -> bool:
    """Return whether a value can be encoded as an image. An image is a uint8 array: height x width,
    or height x width x 1, 3 or 4 channels."""
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or not value.size:
        return False
    return value.ndim == 2 or (value.ndim == 3 and value.shape[2] in CHANNELS)


def encode(value: Any, file_format: str) -> bytes:
    """Return the bytes of an image file in the format `file_format`. The value is pixels, or the
    bytes of an image file in any format. Raises ValueError if the value is not an image."""
    if isinstance(value, bytes):
        return _encoded_again(value, file_format)
    if not is_pixels(value):
        array = isinstance(value, np.ndarray)
        kind = f"{value.dtype} {value.shape}" if array else type(value).__name__
        raise ValueError(
            f"{kind} is not an image, which is bytes or uint8 pixels: height x width, or height x "
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
        raise ValueError(f"the bytes are not an image: {error}") from None


def _saved(image: Image.Image, file_format: str) -> bytes:
    if file_format == "jpeg" and image.mode == "RGBA":
        image = in_mode(image, "RGB", "white")  # JPEG has no transparency
    buffer = io.BytesIO()
    image.save(buffer, file_format)
    return buffer.getvalue()


@dataclass(frozen=True)
class Frame:
    """A page of an image file, or a frame of a video. `index` is its position in the file, and
    `seconds` its time in the video, if the file states the time."""

    index: int
    pixels: np.ndarray
    warnings: list[RowWarning]
    seconds: float | None = None


def frame_or_error(
    index: int, make_pixels: Callable[[], np.ndarray], seconds: float | None = None
) -> Frame | Exception:
    """Call `make_pixels`, and return a frame with the pixels and warnings, or the raised error. An
    error that is not about the file is raised again."""
    try:
        with collect_warnings() as warnings:
            return Frame(index, make_pixels(), warnings, seconds)
    except Exception as error:
        if not is_about_the_file(error):
            raise
        return error


def page_frames(content: bytes, options: ImageFields) -> Iterator[Frame | Exception]:
    """Yield the pages of an image file, and an error in place of each page that cannot be decoded.
    If a GIF file is truncated, the last item is an error. Raises an error if opening fails."""
    pages = ImagePages(content, options)
    for index, number in enumerate(pages.numbers):
        yield frame_or_error(index, partial(pages.pixels, number))
    if is_truncated_animation(content):
        yield EOFError(f"the end of the file is missing. {ACCEPT}")


def without_damaged_end(frames: Iterator[Frame | Exception]) -> Iterator[Frame | Exception]:
    """Yield frames, but no errors about damage after the last good frame. If there are such errors,
    this frame gets the warning Truncated. Yield all errors if no frame is good."""
    pending: list[Frame | Exception] = []
    for frame in frames:
        # a ValueError is about a limit or an option, and other errors are about damage
        if isinstance(frame, Frame) or type(frame) in (ValueError, MemoryError):
            yield from pending
            pending = []
        pending.append(frame)
    if len(pending) > 1 and isinstance(pending[0], Frame):
        last = pending[0]
        others = [warning for warning in last.warnings if warning.name != WarningName.TRUNCATED]
        pending = [replace(last, warnings=[*others, RowWarning(0, WarningName.TRUNCATED, 0)])]
    yield from pending
