"""Measures the speed of the machine, so that budgets mean the same on every machine."""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ProcessPoolExecutor

OBJECTS = 1_000_000
MOST_PROCESSES = 8
"""Each takes about 150 MB."""
REFERENCE_SECONDS = 1.25
"""The result of `measured_seconds` on the reference machine, for which the budgets are set. Where
it was 2.45 s, the peers of `make throughput` took 1.95 times as long as on the reference machine.
"""


def machine_factor(measured: float) -> float:
    """Return the factor for the budgets: 1.0 on the reference machine or a faster machine."""
    return max(1.0, measured / REFERENCE_SECONDS)


def measured_seconds() -> float:
    """Return the seconds until every core has done a fixed amount of work, all at the same time."""
    cores = min(os.cpu_count() or 1, MOST_PROCESSES)
    with ProcessPoolExecutor(cores) as pool:
        list(pool.map(_work, [1] * cores))  # starts the processes before the measurement
        begin = time.monotonic()
        list(pool.map(_work, [OBJECTS] * cores))
        return time.monotonic() - begin


def measured_cpu_seconds() -> float:
    """Return the CPU time of the same work on one core. Other programs hardly affect it: it suits
    limits of CPU time."""
    cores = min(os.cpu_count() or 1, MOST_PROCESSES)
    with ProcessPoolExecutor(cores) as pool:
        return max(pool.map(_cpu_seconds, [OBJECTS] * cores))


def _cpu_seconds(objects: int) -> float:
    begin = time.process_time()
    _work(objects)
    return time.process_time() - begin


def _work(objects: int) -> None:
    """Create objects and read them in random order: tests wait for memory, not the processor."""
    numbers = list(range(objects))
    random.Random(objects).shuffle(numbers)
    texts = {number: str(number) for number in numbers}
    for number in range(objects):
        texts[number]
