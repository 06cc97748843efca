"""Measures how fast the machine is, so that budgets mean the same on each."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor

STEPS = 12_000_000
REFERENCE_SECONDS = 1.0
"""What `measured_seconds` returns on an idle machine like the one that the budgets were set on."""


def machine_factor(measured: float) -> float:
    """Return by how much to multiply the budgets: 1.0 on the reference machine or a faster one."""
    return max(1.0, measured / REFERENCE_SECONDS)


def measured_seconds() -> float:
    """Return the seconds that all cores together take for a fixed amount of work on each."""
    cores = os.cpu_count() or 1
    with ProcessPoolExecutor(cores) as pool:
        list(pool.map(_work, [1] * cores))  # starts the processes
        begin = time.monotonic()
        list(pool.map(_work, [STEPS] * cores))
        return time.monotonic() - begin


def _work(steps: int) -> int:
    total = 0
    for number in range(steps):
        total += number & 7
    return total
