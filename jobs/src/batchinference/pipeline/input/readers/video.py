"""Reads videos with PyAV: one row per frame, decoded on demand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

import av
import pyarrow as pa
from av.container import InputContainer
from av.stream import Disposition
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from batchinference.pipeline.error_attribution import raise_storage_error
from batchinference.pipeline.input.readers import BadRow, or_bad
from batchinference.pipeline.input.readers.frames import Frame, FrameReader
from batchinference.pipeline.input.readers.records import BUFFER_BYTES, up_to_damage
from batchinference.pipeline.media.cut_files import missing_end
from batchinference.pipeline.media.films import frame_pixels
from batchinference.pipeline.media.recordings import open_video
from batchinference.pipeline.row_warnings import RowWarning, collect_warnings, warn
from batchinference.pipeline.storage.location import Location
from batchinference.spec.read import VideoOptions
from batchinference.spec.warnings import WarningName

SLACK, SMALL_PIXELS = 2, 1 << 16
"""Tolerance for the pixel limit of FFmpeg, which counts whole blocks, and therefore more pixels
than the frame has."""
_ROUNDING = 1e-6
"""Tolerance in ticks for floating-point errors: 0.29 * 100 is less than 29."""
_OPACITY_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
"""The decoders that decode the opacity of a WebM video. The usual decoders ignore it."""
Picture: TypeAlias = av.VideoFrame | Exception


class VideoReader(FrameReader):
    extensions = (
        *("mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "ts", "m2ts", "mts"),
        *("wmv", "asf", "flv", "3gp", "ogv", "vob", "mxf"),
    )

    def __init__(self, options: VideoOptions) -> None:
        super().__init__(options.size)
        self._options, self._fps, self._most = options, options.fps, options.max_pixels
        timestamp = ["frame_timestamp"] if options.include_timestamps else []
        self.names = ("frame", "frame_index", *timestamp)

    def frames(self, file: Location) -> Iterator[Frame | BadRow]:
        pictures = up_to_damage(_pictures(file, self._most), (av.FFmpegError,))
        frames = iter(partial(self._next_frame, self._chosen(pictures)), None)
        return _up_to_last(frames) if self._options.truncated == "accept" else frames

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

    def _next_frame(self, pictures: Iterator[tuple[int, Picture]]) -> Frame | BadRow | None:
        with collect_warnings() as warnings:
            index, picture = next(pictures, (0, None))
            if picture is None or isinstance(picture, Exception):
                return picture and BadRow(picture)
            pixels = or_bad(partial(frame_pixels, picture, self._options))
        bad = isinstance(pixels, BadRow)
        return pixels if bad else Frame(index, pixels, warnings, picture.time)

    def rows_in(self, file: Location, size: int) -> int | None:
        try:
            with _opened(file, self._most) as (_, container, stream):
                return _rows(container, stream, self._fps)
        except av.FFmpegError:
            return 1
        except OSError as error:
            raise_storage_error(error)
            return 1


def _up_to_last(frames: Iterator[Frame | BadRow]) -> Iterator[Frame | BadRow]:
    """Yield the frames up to the last one that is good, which gets the warning Truncated if there
    are failed rows after it. Yield the failed rows if no frame is good."""
    last: Frame | None = None
    bad: list[BadRow] = []
    for frame in frames:
        if isinstance(frame, BadRow):
            bad.append(frame)
            continue
        yield from [*([last] if last else []), *bad]
        last, bad = frame, []
    if last is None:
        yield from bad
        return
    cut = [RowWarning(0, WarningName.TRUNCATED, 0)] if bad else []
    yield last._replace(warnings=[*last.warnings, *cut])


@contextmanager
def _opened(
    file: Location, max_pixels: int
) -> Iterator[tuple[pa.NativeFile, InputContainer, VideoStream]]:
    """Open a video and yield it with its file and its first video track. Raises FFmpegError if
    there is none, or if its frames have more than `max_pixels` pixels."""
    with (
        file.filesystem.open_input_file(file.path) as source,
        open_video(source, buffer_size=BUFFER_BYTES) as container,
    ):
        tracks = [
            track
            for track in container.streams.video
            if not track.disposition & Disposition.attached_pic
        ]
        if not tracks:
            raise av.InvalidDataError(0, "the file has no pictures")
        stream = tracks[0]
        if len(tracks) > 1:
            warn(WarningName.PAGES_IGNORED, amount=len(tracks) - 1)
        if stream.width * stream.height > max_pixels:
            size = f"{stream.width} x {stream.height} pixels are more than"
            raise av.InvalidDataError(0, f"{size} max_pixels ({max_pixels})")
        yield source, container, stream


def _decoder_of(stream: VideoStream, max_pixels: int) -> VideoCodecContext:
    context = stream.codec_context
    if stream.metadata.get("alpha_mode") == "1" and context.name in _OPACITY_DECODERS:
        context = av.CodecContext.create(_OPACITY_DECODERS[context.name], "r")
    # Ray runs as many tasks as there are CPUs, so one thread per task is enough
    context.thread_count = 1
    # FFmpeg refuses frames that are much larger before it allocates them
    most = SLACK * max(max_pixels, SMALL_PIXELS)
    context.options = {"max_pixels": str(most)}
    return context


def _pictures(file: Location, max_pixels: int) -> Iterator[Picture]:
    """Yield all frames in display order, with an error for each frame that cannot be decoded, and
    one if the end of the file is missing. Raises FFmpegError if the file is not a video, or if the
    rest of it cannot be read."""
    lost: list[tuple[int, Exception]] = []  # with timestamps: packets come in any order
    with _opened(file, max_pixels) as (source, container, stream):
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
                yield ValueError("the frame is damaged") if frame.is_corrupt else frame
        yield from (error for _, error in lost)
        if (error := missing_end(source, source.size())) is not None:
            yield error


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
