"""Notes of tasks for the report, as JSON: time of steps, peak memory, retries."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

from batchinference.pipeline.ray_compat import number_of_this_task, retries_of_this_task

GROWTH = 1.1
_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes per unit of getrusage."""
SHARE, LEAST_SECONDS = 0.1, 1.0
"""A note is taken as soon as its work is this share of all earlier work, and at least this long.
Few notes then describe a long job, and they lack at most this share of it."""


def peak_bytes() -> int:
    """Return the peak memory of this process in bytes, including shared memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


class PeakMemory:
    """Reports the peak memory of a process when it has grown by GROWTH since the last report."""

    def __init__(self) -> None:
        self._reported = 0.0

    def notes(self, step: str) -> tuple[tuple[str, str], ...]:
        """Return a note for the report if memory has grown enough."""
        peak = peak_bytes()
        if peak < self._reported * GROWTH:
            return ()
        self._reported = peak
        return ((step, json.dumps({"peak_bytes": peak})),)


@lru_cache(maxsize=16)
def peak_memory(_run: str) -> PeakMemory:
    """Return the reports of this process for a run, which all of its tasks share."""
    return PeakMemory()


def retry_notes(step: str) -> tuple[tuple[str, str], ...]:
    """Return a note for the report if the running task is a retry. A task may return it several
    times: it is counted once."""
    retries = retries_of_this_task()
    if not retries:
        return ()
    return ((step, json.dumps({"retries": retries, "task": number_of_this_task()})),)


class StepTime:
    """The rows, the seconds and the CPU seconds of a step in one process."""

    def __init__(self) -> None:
        self._noted = 0.0
        """Seconds in the notes that were taken."""
        self._clear()

    def _clear(self) -> None:
        self._rows, self._seconds, self._cpu = 0, 0.0, 0.0

    @contextmanager
    def measured(self, rows: Callable[[], int]) -> Iterator[None]:
        """Add the time of the block, after which the step has run over `rows()` rows."""
        # the CPU time of the process, because libraries compute in threads of their own
        began, cpu = time.perf_counter(), time.process_time()
        yield
        self._rows += rows()
        self._seconds += time.perf_counter() - began
        self._cpu += time.process_time() - cpu

    def take_notes(self) -> list[str]:
        """Return the measurements since the last note as JSON, if they are worth a note."""
        wanted = max(LEAST_SECONDS, SHARE * self._noted) if self._noted else 0.0
        if not self._rows or self._seconds < wanted:
            return []
        note = {"rows": self._rows, "seconds": self._seconds, "cpu_seconds": self._cpu}
        self._noted += self._seconds
        self._clear()
        return [json.dumps({name: round(value, 4) for name, value in note.items()})]
