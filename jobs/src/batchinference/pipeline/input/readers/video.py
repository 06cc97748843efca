"""Reads videos with PyAV: one row per frame, decoded on demand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import av
import numpy as np
import pyarrow as pa
from av.container import InputContainer
from av.video.stream import VideoStream

from batchinference.pipeline.error_attribution import raise_storage_error
from batchinference.pipeline.input.readers import BadRow, Chunk, Reader
from batchinference.pipeline.input.readers.records import BUFFER_BYTES, up_to_damage
from batchinference.pipeline.media import images
from batchinference.pipeline.media.recordings import open_video
from batchinference.pipeline.storage.location import Location
from batchinference.spec.read import VideoOptions

CHUNK_BYTES = 8 << 20
SLACK, SMALL_PIXELS = 2, 1 << 16
"""Tolerance for the pixel limit of FFmpeg, which counts whole blocks, and therefore more pixels
than the frame has."""
_ROUNDING = 1e-6
"""Tolerance in ticks for floating-point errors: 0.29 * 100 is less than 29."""
Picture: TypeAlias = av.VideoFrame | Exception


class VideoReader(Reader):
    def __init__(self, options: VideoOptions) -> None:
        self._fps = options.fps
        self._size = options.size
        self._most = options.max_pixels
        self._timestamps = options.include_timestamps

    def read(self, file: Location) -> Iterator[Chunk]:
        pictures = up_to_damage(_pictures(file, self._most), (av.FFmpegError,))
        yield from self._tables(self._chosen(pictures))

    def _chosen(self, pictures: Iterator[Picture]) -> Iterator[tuple[int, Picture]]:
        """Yield the frames to read with their indexes. Frames that cannot be decoded or have no
        timestamp are always included."""
        fps, last, begin = self._fps, -1, None
        for index, picture in enumerate(pictures):
            if fps is None or isinstance(picture, Exception) or picture.time is None:
                yield index, picture
                continue
            begin = picture.time if begin is None else begin
            tick = math.floor((picture.time - begin) * fps + _ROUNDING)
            if tick > last:
                yield index, picture
                last = tick

    def _tables(self, pictures: Iterator[tuple[int, Picture]]) -> Iterator[Chunk]:
        rows: list[_Row] = []
        for index, picture in pictures:
            if isinstance(picture, Exception):
                yield from [self._table(rows), BadRow(picture)]
                rows = []
                continue
            rows.append(_Row(index, picture.time, self._pixels(picture)))
            if len(rows) * rows[-1].pixels.nbytes >= CHUNK_BYTES:
                yield self._table(rows)
                rows = []
        yield self._table(rows)

    def _pixels(self, frame: av.VideoFrame) -> np.ndarray:
        """Return the pixels of a frame: height x width x RGB, uint8."""
        height, width = self._size or (frame.height, frame.width)
        scaled = frame.reformat(width, height, "rgb24", interpolation="BILINEAR")
        picture: np.ndarray = scaled.to_ndarray()
        return picture

    def _table(self, rows: list[_Row]) -> pa.Table:
        if not rows:
            return pa.table({})
        frames = images.to_arrow([row.pixels for row in rows], self._size)
        table = pa.table({"frame": frames, "frame_index": pa.array([row.index for row in rows])})
        if self._timestamps:
            times = pa.array([row.seconds for row in rows], pa.float64())
            table = table.append_column("frame_timestamp", times)
        return table

    def rows_in(self, file: Location, size: int) -> int | None:
        try:
            with _opened(file, self._most) as (container, stream):
                return _rows(container, stream, self._fps)
        except av.FFmpegError:
            return 1
        except OSError as error:
            raise_storage_error(error)
            return 1

    def columns(self) -> list[str]:
        return ["frame", "frame_index", *(["frame_timestamp"] if self._timestamps else [])]


@dataclass(frozen=True)
class _Row:
    index: int
    seconds: float | None
    pixels: np.ndarray


@contextmanager
def _opened(file: Location, max_pixels: int) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a video and yield it with its first video stream. Raises FFmpegError if there is none,
    or if its frames have more than `max_pixels` pixels."""
    with (
        file.filesystem.open_input_file(file.path) as source,
        open_video(source, buffer_size=BUFFER_BYTES) as container,
    ):
        if not container.streams.video:
            raise av.InvalidDataError(0, "the file has no pictures")
        stream = container.streams.video[0]
        # Ray runs as many tasks as there are CPUs, so one thread per task is enough
        stream.codec_context.thread_count = 1
        if stream.width * stream.height > max_pixels:
            size = f"{stream.width} x {stream.height} pixels are more than"
            raise av.InvalidDataError(0, f"{size} max_pixels ({max_pixels})")
        # FFmpeg refuses frames that are much larger before it allocates them
        most = SLACK * max(max_pixels, SMALL_PIXELS)
        stream.codec_context.options = {"max_pixels": str(most)}
        yield container, stream


def _pictures(file: Location, max_pixels: int) -> Iterator[Picture]:
    """Yield all frames in display order, with an error for each frame that cannot be decoded.
    Raises FFmpegError if the file is not a video, or if the rest of it cannot be read."""
    lost: list[tuple[int, Exception]] = []  # with timestamps: packets come in any order
    with _opened(file, max_pixels) as (container, stream):
        for packet in container.demux(stream):
            try:
                frames = packet.decode()
            except av.FFmpegError as error:
                lost.append((packet.pts or 0, error))
                continue
            for frame in frames:
                while lost and lost[0][0] <= (frame.pts or 0):
                    yield lost.pop(0)[1]
                yield ValueError("the frame is damaged") if frame.is_corrupt else frame
    yield from (error for _, error in lost)


def _rows(container: InputContainer, stream: VideoStream, fps: float | None) -> int | None:
    """Return the estimated number of rows of a video, based on its header; None if unknown."""
    seconds = container.duration / av.time_base if container.duration else None
    frames = stream.frames
    if not frames and seconds and stream.average_rate:
        frames = round(seconds * stream.average_rate)
    if fps is not None and seconds is not None:
        ticks = math.ceil(seconds * fps)
        return min(ticks, frames) if frames else ticks
    return frames or None
