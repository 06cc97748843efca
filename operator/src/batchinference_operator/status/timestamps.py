"""Timestamps in Kubernetes objects."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf

from batchinference.spec.times import time_of


def to_rfc3339(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_since(text: str, now: datetime) -> float:
    """Return the seconds since a timestamp; infinity if the text is not a timestamp."""
    time = time_of(text)
    return inf if time is None else (now - time).total_seconds()
