"""Times as they stand in objects."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf

from batchinference.spec.times import time_of


def stamp(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age(text: str, now: datetime) -> float:
    """Seconds since a time stamp; without one, as if it were long ago."""
    time = time_of(text)
    return inf if time is None else (now - time).total_seconds()
