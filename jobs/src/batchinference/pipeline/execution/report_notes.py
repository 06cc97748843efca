"""Makes the notes of tasks for the report (JSON): peak memory, retries, and sums of counts."""

from __future__ import annotations

import json
import resource
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import lru_cache

from batchinference.pipeline.ray_compat import number_of_this_task, retries_of_this_task
from batchinference.pipeline.step_time import COUNTS

GROWTH = 1.1
"""The factor by which the peak memory of a process has grown when it is reported again."""
_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes per unit of getrusage."""


def peak_bytes() -> int:
    """Return the peak memory of this process in bytes, including shared memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


class PeakMemory:
    """Reports the peak memory of a process each time that it has grown by the factor GROWTH."""

    def __init__(self) -> None:
        self._reported = 0.0

    def notes(self, step: str) -> tuple[tuple[str, str], ...]:
        """Return a note for the report if the peak memory has grown enough since the last one."""
        peak = peak_bytes()
        if peak < self._reported * GROWTH:
            return ()
        self._reported = peak
        return ((step, json.dumps({"peak_bytes": peak})),)


@lru_cache(maxsize=16)
def peak_memory(_run: str) -> PeakMemory:
    """Return the PeakMemory of this process that all tasks of a pass share."""
    return PeakMemory()


def with_sums(notes: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the notes. Notes of a step that have only counts are added up to one note."""
    others, sums = list[tuple[str, str]](), defaultdict[str, Counter[str]](Counter)
    for step, text in notes:
        note = json.loads(text)
        if note.keys() <= COUNTS:
            sums[step].update(note)
        else:
            others.append((step, text))
    return (*others, *((step, json.dumps(counts)) for step, counts in sums.items()))


def retry_notes(step: str) -> tuple[tuple[str, str], ...]:
    """Return a note for the report if the running task is a retry. The report counts a task once,
    even if there are several such notes."""
    retries = retries_of_this_task()
    if not retries:
        return ()
    return ((step, json.dumps({"retries": retries, "task": number_of_this_task()})),)
