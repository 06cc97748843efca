"""Durations in the notation of Go or in days, such as 1h30m or 7d, and ISO 8601 timestamps."""

import math
import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field

from batchinference.spec.base import required
from batchinference.spec.value_fixes import duration_fix, refuse_numbers

PATTERN = "^([0-9]{1,6}d)?([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$"
EXPECTED = "a duration such as 90s, 30m, 2h30m or 7d"
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def seconds_of(duration: str) -> int:
    """Return the number of seconds of a duration."""
    parts = re.findall("([0-9]+)([dhms])", duration)
    return sum(int(number) * _SECONDS[unit] for number, unit in parts)


def duration_text(seconds: float) -> str:
    """Return a duration as text, such as 45s or 2m30s; without seconds from an hour on: 3h05m."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


DurationOrZero = Annotated[
    str, Field(pattern=PATTERN, min_length=2, max_length=32), refuse_numbers(EXPECTED, duration_fix)
]
Duration = Annotated[
    DurationOrZero,
    Field(),
    required(seconds_of, "expected a length of time above zero, such as 90s, 30m or 1h30m"),
]


_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[-+]\d\d:\d\d)", re.ASCII)


def time_of(text: str) -> datetime | None:
    """Return the time of a timestamp in UTC; None if the timestamp is invalid."""
    if not _TIME.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
