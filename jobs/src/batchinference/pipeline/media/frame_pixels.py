"""Converts the frames of a video to pixels: orientation, depth, transparency and size."""

from __future__ import annotations

from functools import cache
from typing import Any

import av
import numpy as np
from PIL import Image

from batchinference.pipeline.media.orientation import FrameTurn
from batchinference.pipeline.media.pixels import in_mode, resized
from batchinference.pipeline.row_warnings import warn
from batchinference.spec.media import FrameFields
from batchinference.spec.warnings import WarningName

_UPRIGHT = FrameTurn()


def frame_pixels(frame: av.VideoFrame, options: FrameFields) -> np.ndarray:
    """Return the pixels of a frame: height x width x RGB, uint8."""
    turn = _turn_of(frame) if options.orientation == "apply" else _UPRIGHT
    has_opacity, is_deep = _kind_of(frame.format.name)
    if is_deep:
        warn(WarningName.DEPTH_REDUCED)
    height, width = options.size or (frame.height, frame.width)
    if options.size and turn.transposed:
        height, width = width, height
    if has_opacity:
        layers = Image.fromarray(frame.to_ndarray(format="rgba"))
        opaque = in_mode(layers, "RGB", options.background)
        pixels = np.asarray(resized(opaque, [height, width] if options.size else None))
    else:
        pixels = frame.reformat(width, height, "rgb24", interpolation="BILINEAR").to_ndarray()
    if turn == _UPRIGHT:
        return pixels
    warn(WarningName.ROTATED)
    return turn.applied_to(pixels)


def _turn_of(frame: av.VideoFrame) -> FrameTurn:
    matrix: Any = frame.side_data.get("DISPLAYMATRIX")
    return _UPRIGHT if matrix is None else FrameTurn.of(bytes(matrix))


@cache
def _kind_of(pixel_format: str) -> tuple[bool, bool]:
    """Return whether pixels of a format have an opacity, and whether they have more than 8 bits."""
    components = av.VideoFormat(pixel_format).components
    return any(part.is_alpha for part in components), any(part.bits > 8 for part in components)
