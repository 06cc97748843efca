"""Measures the speed of the machine, so that budgets mean the same on every machine."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor

STEPS = 12_000_000
REFERENCE_SECONDS = 1.0
"""The result of `measured_seconds` on an idle reference machine, for which the budgets are set."""


def machine_factor(measured: float) -> float:
    """Return the factor for the budgets: 1.0 on the reference machine or a faster machine."""
    return max(1.0, measured / REFERENCE_SECONDS)


def measured_seconds() -> float:
    """Return the seconds until every core has done a fixed amount of work, all at the same time."""
    cores = os.cpu_count() or 1
    with ProcessPoolExecutor(cores) as pool:
        list(pool.map(_work, [1] * cores))  # starts the processes before the measurement
        begin = time.monotonic()
        list(pool.map(_work, [STEPS] * cores))
        return time.monotonic() - begin


def _work(steps: int) -> int:
    total = 0
    for number in range(steps):
        total += number & 7
    return total
