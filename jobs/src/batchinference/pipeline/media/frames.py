"""Decodes files with several pictures, one picture at a time: pages of images, frames of videos."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from batchinference.pipeline.error_attribution import is_about_the_file
from batchinference.pipeline.media.cut_files import ACCEPT, is_cut_animation
from batchinference.pipeline.media.images import ImagePages
from batchinference.pipeline.row_warnings import RowWarning, collect_warnings
from batchinference.spec.media import ImageFields
from batchinference.spec.warnings import WarningName


@dataclass(frozen=True)
class Frame:
    """A picture of a file. `index` counts the pictures of the file, and `seconds` is the time of a
    frame of a video."""

    index: int
    pixels: np.ndarray
    warnings: list[RowWarning]
    seconds: float | None = None


def decoded(
    index: int, decode: Callable[[], np.ndarray], seconds: float | None = None
) -> Frame | Exception:
    """Return a picture with the warnings of its decoder, or the error that it raised. Raises errors
    that are not about the file."""
    try:
        with collect_warnings() as warnings:
            return Frame(index, decode(), warnings, seconds)
    except Exception as error:
        if not is_about_the_file(error):
            raise
        return error


def page_frames(content: bytes, options: ImageFields) -> Iterator[Frame | Exception]:
    """Yield the pages of an image file, with an error for each page that cannot be decoded, and one
    if further pages are missing. Raises an error if the file cannot be opened."""
    pages = ImagePages(content, options)
    for index, number in enumerate(pages.numbers):
        yield decoded(index, partial(pages.pixels, number))
    if is_cut_animation(content):
        yield EOFError(f"the end of the file is missing. {ACCEPT}")


def up_to_last(frames: Iterator[Frame | Exception]) -> Iterator[Frame | Exception]:
    """Yield pictures without the damaged ones after the last good one, which gets the warning
    Truncated if there are any. Yield all if no picture is good."""
    held: list[Frame | Exception] = []
    for frame in frames:
        # a ValueError is about a limit or an option, and other errors are about damage
        if isinstance(frame, Frame) or type(frame) in (ValueError, MemoryError):
            yield from held
            held = []
        held.append(frame)
    if len(held) > 1 and isinstance(held[0], Frame):
        last = held[0]
        others = [warning for warning in last.warnings if warning.name != WarningName.TRUNCATED]
        held = [replace(last, warnings=[*others, RowWarning(0, WarningName.TRUNCATED, 0)])]
    yield from held
