"""Makes the notes of tasks for the report (JSON): peak memory, retries, and sums of counts."""

from __future__ import annotations

import json
import resource
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable

from batchinference.pipeline.ray_compat import number_of_this_task, retries_of_this_task
from batchinference.pipeline.step_time import COUNTS

GROWTH = 1.1
"""The factor by which the peak memory of a process has grown when it is reported again."""
_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes per unit of getrusage."""
_reported = Counter[str]()
"""The peak memory that this process has reported in each pass."""


def peak_bytes() -> int:
    """Return the peak memory of this process in bytes, including shared memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


def process_notes(run: str, step: str) -> tuple[tuple[str, str], ...]:
    """Return notes for the report of a pass: the peak memory of this process if it has grown by the
    factor GROWTH since the last note, and the retries of the running task."""
    peak, retries = peak_bytes(), retry_notes(step)
    if peak < GROWTH * _reported[run]:
        return retries
    _reported[run] = peak
    return ((step, json.dumps({"peak_bytes": peak})), *retries)


def with_sums(notes: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the notes. A step's notes that have only counts are added up to one note."""
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
