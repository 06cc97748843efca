"""Reads videos with PyAV: one row per frame. Frames are decoded on demand."""

from __future__ import annotations

from collections.abc import Iterator

import av

from batchinference.pipeline.error_classification import raise_storage_error
from batchinference.pipeline.input.readers.images import FrameReader
from batchinference.pipeline.input.readers.text_lines import up_to_damage
from batchinference.pipeline.input.signatures import is_video
from batchinference.pipeline.media.images import Frame
from batchinference.pipeline.media.videos import estimated_frames, video_frames
from batchinference.pipeline.storage.location import Location
from batchinference.spec.read import VideoOptions

_DAMAGE = (av.FFmpegError, EOFError)


class VideoReader(FrameReader):
    recognizes = staticmethod(is_video)

    def __init__(self, options: VideoOptions) -> None:
        super().__init__(options)
        self._options = options
        timestamp = ["frame_timestamp"] if options.include_timestamps else []
        self.names = ("frame", "frame_index", *timestamp)

    def frames(self, file: Location) -> Iterator[Frame | Exception]:
        with file.filesystem.open_input_file(file.path) as source:
            yield from up_to_damage(video_frames(source, self._options), _DAMAGE)

    def rows_in(self, file: Location, size: int) -> int | None:
        try:
            with file.filesystem.open_input_file(file.path) as source:
                return estimated_frames(source, self._options.max_pixels, self._options.fps)
        except _DAMAGE:
            return 1
        except OSError as error:
            raise_storage_error(error)
            return 1
