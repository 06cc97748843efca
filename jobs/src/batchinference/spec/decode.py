"""Decode steps: a column of bytes becomes images, audio, text or structs."""

from __future__ import annotations

import codecs
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from batchinference.spec.base import ColumnName, SpecModel
from batchinference.spec.json_types import JsonSchema
from batchinference.spec.media import (
    MAX_PIXELS,
    MaxPixels,
    Mode,
    SampleRate,
    Size,
)

SAMPLE_RATE = "sample_rate"


def _known(encoding: str) -> str:
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise PydanticCustomError("encoding", "Python knows no such encoding", {}) from None
    return encoding


class DecodeModel(SpecModel):
    """The fields of each kind of content."""

    column: ColumnName
    """The column of bytes, or of structs with a field `bytes` as in data sets of Hugging Face.
    Null stays null."""
    output: ColumnName | None = None
    """The column for the result. By default, the result replaces `column`."""

    @property
    def columns_added(self) -> list[str]:
        """The columns that the step adds or replaces."""
        return [self.output or self.column]


class DecodeImage(DecodeModel):
    """Image files: height x width x channels (uint8)."""

    format: Literal["image"]
    """What the bytes are."""
    mode: Mode = "RGB"
    """The mode that every image is converted to, as Pillow names it."""
    size: Size | None = None
    """Height and width in pixels to which every image is resized."""
    max_pixels: MaxPixels = MAX_PIXELS
    """Maximum number of pixels of an image. A larger image is a failed row."""


class DecodeAudio(DecodeModel):
    """Audio files: channels x samples (float32, from -1 to 1), and a column `sample_rate`."""

    format: Literal["audio"]
    """What the bytes are."""
    sample_rate: SampleRate | None = None
    """Samples per second to which all audio is resampled. By default, each value keeps its own."""
    mono: bool = False
    """Mix the channels into one. The result is then samples instead of channels x samples."""

    @property
    def columns_added(self) -> list[str]:
        return [self.output or self.column, SAMPLE_RATE]


class DecodeText(DecodeModel):
    """Text."""

    format: Literal["text"]
    """What the bytes are."""
    encoding: Annotated[str, Field(min_length=1, max_length=32), AfterValidator(_known)] = "utf-8"
    """Python's name of the encoding."""


class DecodeJson(DecodeModel):
    """JSON documents that are objects, as bytes or text."""

    format: Literal["json"]
    """What the bytes are."""
    fields: JsonSchema
    """The type of each wanted field: `bool`, `int64`, `float64`, `string`, `list<TYPE>` or
    `struct<NAME: TYPE, ...>`. Other fields are dropped, missing ones are null, and a document with
    another type is a failed row."""


Decode = Annotated[
    DecodeImage | DecodeAudio | DecodeText | DecodeJson, Field(discriminator="format")
]
