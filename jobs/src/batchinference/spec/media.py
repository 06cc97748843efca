"""Options of decoded images, audio and video. Readers and decode steps share them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import PydanticCustomError

from batchinference.spec.base import rules

Pixels = Annotated[int, Field(ge=1, le=65536)]
Size = Annotated[list[Pixels], Field(min_length=2, max_length=2)]
Mode = Literal["RGB", "RGBA", "L", "I;16"]
MaxPixels = Annotated[int, Field(ge=1, le=1 << 31)]
SampleRate = Annotated[int, Field(ge=1, le=1_000_000)]
Colour = Annotated[
    str, Field(pattern="^(#[0-9A-Fa-f]{3}|#[0-9A-Fa-f]{6}|black|gray|white)$", max_length=7)
]
MAX_PIXELS = 64_000_000
_NOT_INCREASING = "the value of black must be less than the value of white"


def _check_range(ends: list[float]) -> list[float]:
    if ends[0] >= ends[1]:
        raise PydanticCustomError("range", _NOT_INCREASING, {})
    return ends


Range = Annotated[
    list[Annotated[float, Field(allow_inf_nan=False)]],
    Field(
        min_length=2, max_length=2, json_schema_extra=rules(("self[0] < self[1]", _NOT_INCREASING))
    ),
    AfterValidator(_check_range),
]


class MediaFields(BaseModel):
    """Options of images, audio and video."""

    truncated: Literal["fail", "accept"] = "fail"
    """What happens if the end of a file is missing. `fail`: the row is a failed row. `accept`: the
    file is read up to its end, and missing pixels are black or gray. A file of which nothing can be
    decoded is always a failed row."""


class FrameFields(MediaFields):
    """Options of images and of the frames of videos."""

    size: Size | None = None
    """Height and width in pixels to which every picture is resized. Models need pictures of one
    size, and small pictures need less memory. Each picture keeps its own size by default."""
    max_pixels: MaxPixels = MAX_PIXELS
    """Maximum number of pixels of a picture. A larger picture is a failed row."""
    orientation: Literal["apply", "ignore"] = "apply"
    """`apply`: rotate and mirror pictures as their file says, so that they look as they do in a
    viewer. `ignore`: keep the pixels as they are stored."""
    background: Colour = "white"
    """The colour over which transparent pixels are drawn, unless the mode is RGBA: `black`, `gray`,
    `white`, or red, green and blue as in `"#ffffff"`."""


class ImageFields(FrameFields):
    """Options of images."""

    mode: Mode = "RGB"
    """The Pillow mode to which every image is converted. `I;16` gives the values as 16-bit numbers,
    height x width. The values of an image with 8 bits are then multiplied by 257."""
    range: Range | None = None
    """The values of black and white, for images with more than 8 bits per channel. Values outside
    of the range are clipped. Images of floating-point numbers and 32-bit integers need it. By
    default, white is the largest number of 8, 10, 12, 14 or 16 bits: the first of these that holds
    all values of the image, unless its format states the value of white."""


class SoundFields(MediaFields):
    """Options of audio."""

    sample_rate: SampleRate | None = None
    """Sampling rate in Hz to which all audio is resampled, such as 16000 for speech models. Each
    recording keeps its own sampling rate by default."""
    mono: bool = False
    """Mix all channels into one. The result then has the shape samples, not channels x samples."""
