"""Limits and modes of decoded images and audio. Readers and decode steps share them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

Pixels = Annotated[int, Field(ge=1, le=65536)]
Size = Annotated[list[Pixels], Field(min_length=2, max_length=2)]
Mode = Literal["RGB", "RGBA", "L"]
MaxPixels = Annotated[int, Field(ge=1, le=1 << 31)]
SampleRate = Annotated[int, Field(ge=1, le=1_000_000)]
MAX_PIXELS = 64_000_000
