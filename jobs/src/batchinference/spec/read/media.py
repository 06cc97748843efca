"""Pictures, sound and film."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.media import MAX_PIXELS, MaxPixels, Mode, SampleRate, Size
from batchinference.spec.read.base import FileOptions, ReadFiles, RowOptions


class PixelOptions(FileOptions):
    """Options of every format whose pictures are decoded."""

    max_pixels: MaxPixels = MAX_PIXELS
    """Pixels that one picture may have. A larger one is a bad row."""


class PictureOptions(PixelOptions):
    """Options of every format in which there are pictures."""

    mode: Mode = "RGB"
    """Pillow's name of the colour mode that every image is converted to."""
    size: Size | None = None
    """Height and width in pixels that every image is resized to. Models want one size, and
    small pixels travel cheaply."""


class ImageOptions(PictureOptions, RowOptions):
    pass


class AudioOptions(RowOptions):
    USUAL_ROW_BYTES = 1 << 30

    sample_rate: SampleRate | None = None
    """Samples a second that every recording is resampled to, such as the 16000 that speech models
    want. Otherwise each keeps its own."""
    mono: bool = False
    """Mix the channels into one, so that `amplitude` is samples instead of channels x samples."""


class VideoOptions(PixelOptions):
    fps: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Frames to read of each second: the first that is shown at or after each tick. Otherwise all
    are read."""
    size: Size | None = None
    """Height and width in pixels that every frame is resized to."""
    include_timestamps: bool = False
    """Add a column `frame_timestamp`: the seconds from the beginning at which a frame is shown."""


class ReadImages(ReadFiles):
    """Pictures, one a row, in a column `image` of height x width x channels (uint8)."""

    format: Literal["images"]
    """The format of the files."""
    options: ImageOptions = ImageOptions()
    """Options of the format."""


class ReadAudio(ReadFiles):
    """Recordings, one a row: `amplitude` of channels x samples (float32, from -1 to 1) and
    `sample_rate`."""

    format: Literal["audio"]
    """The format of the files."""
    options: AudioOptions = AudioOptions()
    """Options of the format."""


class ReadVideo(ReadFiles):
    """Films, one frame a row: `frame` of height x width x RGB (uint8), and `frame_index`."""

    format: Literal["video"]
    """The format of the files."""
    options: VideoOptions = VideoOptions()
    """Options of the format."""
