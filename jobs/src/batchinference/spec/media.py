"""Options of decoded images, audio, video and text, which readers and decode steps share."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from batchinference.spec.base import invalid

Pixels = Annotated[int, Field(ge=1, le=65536)]
Size = Annotated[list[Pixels], Field(min_length=2, max_length=2)]
Mode = Literal["RGB", "RGBA", "L", "I;16"]
MaxPixels = Annotated[int, Field(ge=1, le=1 << 31)]
SampleRate = Annotated[int, Field(ge=1, le=1_000_000)]
COLOUR = "^(#[0-9A-Fa-f]{3}|#[0-9A-Fa-f]{6}|black|gray|white)$"
Colour = Annotated[str, Field(pattern=COLOUR, max_length=7)]
MAX_PIXELS = 64_000_000


def _check_range(ends: list[float]) -> list[float]:
    if ends[0] >= ends[1]:
        both = f"black ({ends[0]:g}) must be less than white ({ends[1]:g})"
        raise invalid(f"{both}. Swap or change them")
    return ends


Range = Annotated[
    list[Annotated[float, Field(ge=-1e12, le=1e12)]],
    Field(min_length=2, max_length=2),
    AfterValidator(_check_range),
]


class MediaFields(BaseModel):
    """Options of images, audio and video."""

    truncated: Literal["fail", "accept"] = "fail"
    """What happens if the end of a file is missing. `fail`: the row is a failed row. `accept`: the
    existing part is read, and missing pixels are black or gray. A file without any readable part is
    a failed row."""


class FrameFields(MediaFields):
    """Options of images and of the frames of videos."""

    size: Size | None = None
    """Height and width in pixels to which every picture is resized. Models need pictures of one
    size, and small pictures need less memory. Each picture keeps its own size by default."""
    max_pixels: MaxPixels = MAX_PIXELS
    """Maximum number of pixels of a picture. A larger picture is a failed row."""
    orientation: Literal["apply", "ignore"] = "apply"
    """`apply`: rotate and mirror pictures as their file says, like a viewer. `ignore`: keep the
    pixels as they are stored."""
    background: Colour = "white"
    """The colour behind transparent pixels: `black`, `gray`, `white`, or red, green and blue as in
    `"#ffffff"`. With the mode RGBA, pixels stay transparent."""


class ImageFields(FrameFields):
    """Options of images."""

    mode: Mode = "RGB"
    """The Pillow mode to which every image is converted. `I;16` gives 16-bit numbers with the shape
    height x width. They are the values in the file. `range` scales them to 0 for black and 65535
    for white. Values of 8 bits are multiplied by 257."""
    range: Range | None = None
    """The values of black and white, for images with more than 8 bits per channel. Values outside
    of the range are clipped. Required for images of floating-point numbers and of signed or 32-bit
    integers. By default, white is the value that the file states. Without such a value, white is
    the smallest of 255, 1023, 4095, 16383 and 65535 that no value of the image exceeds."""


class SoundFields(MediaFields):
    """Options of audio."""

    sample_rate: SampleRate | None = None
    """Sampling rate in Hz to which all audio is resampled, such as 16000 for speech models. Each
    recording keeps its own sampling rate by default."""
    mono: bool = False
    """Mix all channels into one. The result is then a list of samples, without channels."""


_LINE = "x" * 64
"""A text that every encoding of text can encode. `idna`, which is for host names, cannot."""


def _check_encoding(encoding: str) -> str:
    try:
        _LINE.encode(encoding)
    except (LookupError, ValueError):
        raise invalid("Python knows no such encoding of text. Use one such as utf-8") from None
    return encoding


Encoding = Annotated[str, Field(min_length=1, max_length=32), AfterValidator(_check_encoding)]
