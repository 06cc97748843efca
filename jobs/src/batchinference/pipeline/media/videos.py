"""Opens videos and decodes their frames with PyAV."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, TypeAlias, cast

import av
import numpy as np
import pyarrow as pa
from av.container import InputContainer
from av.stream import Disposition
from av.video.codeccontext import VideoCodecContext
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream
from PIL import Image

from batchinference.pipeline.media.audio import open_media
from batchinference.pipeline.media.images import Frame, frame_or_error
from batchinference.pipeline.media.orientation import FrameTurn
from batchinference.pipeline.media.pixels import in_mode, resized
from batchinference.pipeline.media.truncated_files import truncation_error
from batchinference.pipeline.row_warnings import collect_warnings, warn
from batchinference.spec.media import FrameFields
from batchinference.spec.read import VideoOptions
from batchinference.spec.warnings import WarningName

_UPRIGHT = FrameTurn()


class FrameConverter:
    """Converts frames to pixels. Use one instance per video: it reuses the prepared scaling."""

    def __init__(self, options: FrameFields) -> None:
        self._options = options
        self._reformatter = VideoReformatter()

    def __call__(self, frame: av.VideoFrame) -> np.ndarray:
        """Return the pixels of a frame: height x width x RGB, uint8."""
        # read no other side data, because the library raises an error for unknown kinds
        applies = self._options.orientation == "apply"
        matrix: Any = frame.side_data.get("DISPLAYMATRIX") if applies else None
        turn = _UPRIGHT if matrix is None else FrameTurn.of(bytes(matrix))
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
        return np.asarray(scaled.to_ndarray())

    def _layered(self, frame: av.VideoFrame, size: list[int] | None) -> np.ndarray:
        layers = Image.fromarray(frame.to_ndarray(format="rgba"))
        return np.asarray(resized(in_mode(layers, "RGB", self._options.background), size))


@cache
def _kind_of(pixel_format: str) -> tuple[bool, bool]:
    """Return whether a pixel format has an opacity, and whether it has more than 8 bits."""
    components = av.VideoFormat(pixel_format).components
    return any(part.is_alpha for part in components), any(part.bits > 8 for part in components)


BUFFER_BYTES = 4 << 20
"""Bytes per fetch. Each fetch from an object store is one request."""
SLACK, SMALL_PIXELS = 2, 1 << 16
"""FFmpeg's limit of pixels is SLACK times the limit of the job, or SLACK times SMALL_PIXELS if that
is more. FFmpeg rounds frames up to full blocks, so it counts more pixels than the job."""
_OPACITY_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
"""The decoders that decode the opacity of a WebM video. The usual decoders ignore it."""
_ROUNDING = 1e-6
"""Tolerance in ticks for floating-point errors (0.29 * 100 is less than 29)."""
_NO_VIDEO = (
    "the file is not a video. Read pictures and animations such as PNG and GIF with read.format: "
    "images, and recordings such as WAV and MP3 with read.format: audio"
)
FrameOrError: TypeAlias = av.VideoFrame | Exception


def video_frames(source: pa.NativeFile, options: VideoOptions) -> Iterator[Frame | Exception]:
    """Yield the frames of a video that the options select, and an error in place of each frame that
    cannot be decoded. If the file is truncated, the last item is an error. Raises FFmpegError or
    EOFError if the file is not a video, or if reading cannot go on."""
    convert = FrameConverter(options)
    pictures = _at_frame_rate(_all_frames(source, options.max_pixels), options.fps)
    while True:
        with collect_warnings() as warnings:  # warnings about the file arise with the first frame
            index, picture = next(pictures, (0, None))
        if picture is None:
            return
        if isinstance(picture, Exception):
            yield picture
            continue
        frame = frame_or_error(index, partial(convert, picture), picture.time)
        if isinstance(frame, Frame):
            frame.warnings.extend(warnings)
        yield frame


def _at_frame_rate(
    pictures: Iterator[FrameOrError], fps: float | None
) -> Iterator[tuple[int, FrameOrError]]:
    """Yield at most `fps` frames per second with their indexes, or all frames if `fps` is None.
    Errors and frames without a timestamp are always included."""
    last_tick, begin, previous = -1, 0.0, math.inf
    for index, picture in enumerate(pictures):
        if fps is None or isinstance(picture, Exception) or picture.time is None:
            yield index, picture
            continue
        if picture.time < previous:  # the first frame of the file, or of an appended video
            last_tick, begin = -1, picture.time
        previous = picture.time
        tick = math.floor((picture.time - begin) * fps + _ROUNDING)
        if tick > last_tick:
            yield index, picture
            last_tick = tick


def _all_frames(source: pa.NativeFile, max_pixels: int) -> Iterator[FrameOrError]:
    """Yield all frames of a video in display order, and the errors of `video_frames`."""
    lost: list[tuple[int, Exception]] = []  # with timestamps: packets are not in display order
    with _opened(source, max_pixels) as (container, stream):
        decoder = _decoder_of(stream, max_pixels)
        for packet in container.demux(stream):
            try:
                frames = decoder.decode(packet)
            except av.FFmpegError as error:
                lost.append((packet.pts or 0, error))
                continue
            for frame in frames:
                while lost and lost[0][0] <= (frame.pts or 0):
                    yield lost.pop(0)[1]
                yield OSError("the frame is damaged") if frame.is_corrupt else frame
        yield from (error for _, error in lost)
        if (missing := truncation_error(source, source.size())) is not None:
            yield missing


def estimated_frames(source: pa.NativeFile, max_pixels: int, fps: float | None) -> int | None:
    """Return an estimate of the frames in a video, at most `fps` per second. The estimate is from
    the header; it is None if unknown. Raises FFmpegError or EOFError if the file is not a video."""
    with _opened(source, max_pixels) as (container, stream):
        seconds = container.duration / av.time_base if container.duration else None
        frames = stream.frames
        if not frames and seconds and stream.average_rate:
            frames = round(seconds * stream.average_rate)
        if fps is not None and seconds is not None:
            ticks = math.ceil(seconds * fps)
            return min(ticks, frames) if frames else ticks
        return frames or None


@contextmanager
def _opened(source: pa.NativeFile, max_pixels: int) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a video, and yield it with its first video track. Raises FFmpegError if there is no
    video track or too many pixels per frame, and EOFError if truncation prevents opening."""
    try:
        opened = open_media(source, buffer_size=BUFFER_BYTES)
    except av.ArgumentError as error:  # FFmpeg knows the format, but FORMATS does not allow it
        raise av.InvalidDataError(0, _NO_VIDEO) from error
    except av.FFmpegError as error:
        raise truncation_error(source, source.size()) or error from error
    with opened as container:
        tracks = [
            track
            for track in container.streams.video
            if not track.disposition & Disposition.attached_pic
        ]
        if not tracks:
            raise av.InvalidDataError(0, "the file has no pictures")
        if len(tracks) > 1:
            warn(WarningName.PAGES_IGNORED, amount=len(tracks) - 1)
        width, height = tracks[0].width, tracks[0].height
        if width * height > max_pixels:
            size = f"{width} x {height} pixels are more than maxPixels ({max_pixels})"
            raise av.InvalidDataError(0, size)
        yield container, tracks[0]


def _decoder_of(stream: VideoStream, max_pixels: int) -> VideoCodecContext:
    context = stream.codec_context
    if stream.metadata.get("alpha_mode") == "1" and context.name in _OPACITY_DECODERS:
        decoder: Any = _OPACITY_DECODERS[context.name]
        context = cast(VideoCodecContext, av.CodecContext.create(decoder, "r"))
    # Ray runs as many tasks as there are CPUs, so one thread per task is enough
    context.thread_count = 1
    # FFmpeg refuses much larger frames before it allocates memory for them
    context.options = {"max_pixels": str(SLACK * max(max_pixels, SMALL_PIXELS))}
    return context
