"""Timeouts of tests that wait for a cluster, on slow machines."""

from __future__ import annotations

import os

FACTOR = "MACHINE_FACTOR"
"""The environment variable with the seconds that this machine needs for one second of the reference
machine. `make landing` measures and sets it."""


def scaled(seconds: float) -> float:
    """Return a timeout for this machine, from the timeout for the reference machine."""
    return seconds * max(1.0, float(os.environ.get(FACTOR, "1")))
