"""Lengths of time as people write them: 90s, 30m, 6h, 1h30m."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from batchinference.spec.base import rules

PATTERN = "^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$"
_SECONDS = {"h": 3600, "m": 60, "s": 1}


def seconds_of(duration: str) -> int:
    """Seconds of a length of time."""
    return sum(int(n) * _SECONDS[unit] for n, unit in re.findall("([0-9]+)([hms])", duration))


def _some(duration: str) -> str:
    if seconds_of(duration) == 0:
        message = "expected a length of time above zero, such as 90s, 30m or 1h30m"
        raise PydanticCustomError("duration", message, {})
    return duration


_Text = Annotated[str, Field(pattern=PATTERN, min_length=2, max_length=24)]
_ABOVE_ZERO = rules(("self.matches('[1-9]')", "a length of time above zero, such as 90s or 1h30m"))
Duration = Annotated[_Text, Field(json_schema_extra=_ABOVE_ZERO), AfterValidator(_some)]
DurationOrNone = _Text
"""Which may be 0s."""
