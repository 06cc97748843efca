"""Timeouts of tests that wait for a cluster, on slow machines."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

FACTOR = "MACHINE_FACTOR"
"""The environment variable with the seconds that this machine needs for one second of the reference
machine. `make landing` measures and sets it."""


def scaled(seconds: float) -> float:
    """Return a timeout for this machine, from the timeout for the reference machine."""
    return seconds * max(1.0, float(os.environ.get(FACTOR, "1")))


@contextmanager
def time_limit(what: str, minutes: float) -> Iterator[None]:
    """Raise AssertionError in the block if it takes longer, whatever it waits for. `what` is true
    at the end of the block. Only for the main thread."""
    minutes = scaled(minutes)

    def expire(*_: object) -> None:
        raise AssertionError(f"not within {minutes:g} minutes: {what}")

    handler = signal.signal(signal.SIGALRM, expire)
    timer = signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)
