"""Converts the frames of a video to pixels: orientation, depth, transparency and size."""

from __future__ import annotations

from functools import cache
from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from PIL import Image

from batchinference.pipeline.media.orientation import FrameTurn
from batchinference.pipeline.media.pixels import in_mode, resized
from batchinference.pipeline.row_warnings import warn
from batchinference.spec.media import FrameFields
from batchinference.spec.warnings import WarningName

_UPRIGHT = FrameTurn()


class FrameConverter:
    """Converts frames. One converter for all frames of a video prepares the scaling once."""

    def __init__(self, options: FrameFields) -> None:
        self._options = options
        self._reformatter = VideoReformatter()

    def __call__(self, frame: av.VideoFrame) -> np.ndarray:
        """Return the pixels of a frame: height x width x RGB, uint8."""
        turn = _turn_of(frame) if self._options.orientation == "apply" else _UPRIGHT
        has_opacity, is_deep = _kind_of(frame.format.name)
        if is_deep:
            warn(WarningName.DEPTH_REDUCED)
        size = self._options.size
        if size is not None and turn.transposed:
            size = size[::-1]
        pixels = self._layered(frame, size) if has_opacity else self._scaled(frame, size)
        if turn == _UPRIGHT:
            return pixels
        warn(WarningName.ROTATED)
        return turn.applied_to(pixels)

    def _scaled(self, frame: av.VideoFrame, size: list[int] | None) -> np.ndarray:
        height, width = size or (frame.height, frame.width)
        scaled = self._reformatter.reformat(frame, width, height, "rgb24", interpolation="BILINEAR")
        pixels: np.ndarray = scaled.to_ndarray()
        return pixels

    def _layered(self, frame: av.VideoFrame, size: list[int] | None) -> np.ndarray:
        layers = Image.fromarray(frame.to_ndarray(format="rgba"))
        return np.asarray(resized(in_mode(layers, "RGB", self._options.background), size))


def _turn_of(frame: av.VideoFrame) -> FrameTurn:
    matrix: Any = frame.side_data.get("DISPLAYMATRIX")
    return _UPRIGHT if matrix is None else FrameTurn.of(bytes(matrix))


@cache
def _kind_of(pixel_format: str) -> tuple[bool, bool]:
    """Return whether pixels of a format have an opacity, and whether they have more than 8 bits."""
    components = av.VideoFormat(pixel_format).components
    return any(part.is_alpha for part in components), any(part.bits > 8 for part in components)
