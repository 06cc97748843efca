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
"""The peak memory of a process is reported again after it has grown by this factor."""
_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes per unit of getrusage."""
_reported = Counter[str]()
"""The peak memory that this process last reported in each pass."""


def peak_bytes() -> int:
    """Return the peak memory of this process in bytes, including shared memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


def process_notes(run: str, step: str) -> tuple[tuple[str, str], ...]:
    """Return notes about this process for the report of a pass: its peak memory, and the retries of
    the running task. The peak is noted only if it has grown by the factor GROWTH since the last
    note."""
    peak, retries = peak_bytes(), retry_notes(step)
    if peak < GROWTH * _reported[run]:
        return retries
    _reported[run] = peak
    return ((step, json.dumps({"peak_bytes": peak})), *retries)


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
    """Return a note if the running task is a retry. The report counts a task with several notes
    once."""
    retries = retries_of_this_task()
    if not retries:
        return ()
    return ((step, json.dumps({"retries": retries, "task": number_of_this_task()})),)
