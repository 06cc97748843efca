"""Timestamps in the ISO 8601 format that Kubernetes uses."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[-+]\d\d:\d\d)", re.ASCII)


def time_of(text: str) -> datetime | None:
    """Return the time of a timestamp in UTC; None if the timestamp is invalid."""
    if not _TIME.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
