"""Parses, formats and checks timestamps of Kubernetes objects."""

from collections.abc import Callable
from datetime import UTC, datetime
from math import inf

from batchinference.spec.durations import time_of

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def to_rfc3339(now: datetime) -> str:
    """Return a time in UTC in the format of Kubernetes."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_since(text: str, now: datetime) -> float:
    """Return the seconds since a timestamp; infinity if the text is not a timestamp."""
    time = time_of(text)
    return inf if time is None else (now - time).total_seconds()


def unix_seconds(timestamp: str) -> float:
    """Return a timestamp in seconds since 1970. Raises ValueError if it is invalid."""
    time = time_of(timestamp)
    if time is None:
        raise ValueError(f"expected a time such as 2026-01-31T23:59:00Z ({timestamp})")
    return time.timestamp()


def plausible_end(reported: str | None, start: str | None, now: str) -> str:
    """Return the reported end of a job; `now` if the end is missing, before the start, or after
    `now`. The clock of the driver or of KubeRay may be wrong."""
    times = [time_of(text or "") for text in (reported, start or reported, now)]
    end, earliest, latest = times
    if end is None or earliest is None or latest is None or not earliest <= end <= latest:
        return now
    return str(reported)
