"""The fields `tooLong` and `windowOverlap`: what happens to texts that are too long for a model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.base import invalid
from batchinference.spec.models.base import RuntimeModel

TooLong = Literal["fail", "truncate", "truncateLeft", "windows"]


class TextModel(RuntimeModel):
    """Base class of models that read texts."""

    too_long: TooLong | None = None
    """What happens to a text with more tokens than the model takes. `truncate`: its end is cut.
    `truncateLeft`: its beginning is cut. `windows`: it is divided into overlapping windows, and
    their results are combined. `fail`: the row is a failed row. By default, the end is cut, and for
    models that generate text, the row fails. Rows with a cut text are counted as TextCut."""


class WindowedModel(TextModel):
    """Base class of models that can combine their results for several windows of a text."""

    window_overlap: Annotated[int, Field(ge=0, le=65536)] | None = None
    """The number of tokens that a window repeats from the end of the previous one. By default, an
    eighth of a window."""

    def check_overlap(self) -> None:
        """Raise a validation error if `windowOverlap` is set without windows."""
        if self.window_overlap is not None and self.too_long != "windows":
            raise invalid("windowOverlap is for tooLong windows only")
