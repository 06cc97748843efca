"""Pictures, sound and film."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.read.base import FileOptions, ReadModel

Pixels = Annotated[int, Field(ge=1, le=65536)]


class ImageOptions(FileOptions):
    mode: Literal["RGB", "RGBA", "L"] = "RGB"
    """Pillow's name of the colour mode that every image is converted to."""
    size: Annotated[list[Pixels], Field(min_length=2, max_length=2)] | None = None
    """Height and width in pixels that every image is resized to. Models want one size, and
    small pixels travel cheaply."""


class ReadImages(ReadModel):
    """Pictures, one a row, in a column `image` of height x width x channels (uint8)."""

    format: Literal["images"]
    """The format of the files."""
    options: ImageOptions = ImageOptions()
    """Options of the format."""
