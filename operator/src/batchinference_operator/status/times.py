"""Times in objects of others, which may be absent or malformed."""

from __future__ import annotations

from datetime import UTC, datetime


def time_of(text: str) -> datetime | None:
    """The time of a stamp in UTC; None for anything else."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError, TypeError):
        return None
