"""Times as they stand in objects."""

from __future__ import annotations

from datetime import UTC, datetime


def stamp(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age(text: str, now: datetime) -> float:
    """Seconds since a time stamp; without one, as if it were long ago."""
    if not text:
        return float("inf")
    return (now - datetime.fromisoformat(text)).total_seconds()
