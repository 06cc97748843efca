"""The fields of models that read texts: what happens to a text that is longer than the model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.base import refusal
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
    """Base class of models whose results for several parts of a text can be combined."""

    window_overlap: Annotated[int, Field(ge=0, le=65536)] | None = None
    """The number of tokens that a window repeats from the end of the previous one. By default, an
    eighth of a window."""

    def check_overlap(self) -> None:
        """Raise a refusal if there is an overlap without windows."""
        if self.window_overlap is not None and self.too_long != "windows":
            raise refusal("windowOverlap is for tooLong windows only")
