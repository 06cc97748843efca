"""Time stamps, in the one form of ISO 8601 that Kubernetes writes."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[-+]\d\d:\d\d)", re.ASCII)


def time_of(text: str) -> datetime | None:
    """The time of a stamp in UTC; None where it has another form, or there is no such time."""
    if not _TIME.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
