"""Measures and reports the peak memory of worker processes."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from batchinference.pipeline import row_ids
from batchinference.pipeline.arrow import concat

GROWTH = 1.1
_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes per unit of getrusage."""


def peak_bytes() -> int:
    """Return the peak memory of this process in bytes, including shared memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


def peak_note() -> str:
    return json.dumps({"peak_bytes": peak_bytes()})


class Growth:
    """Creates notes on the memory of a process when it has grown by GROWTH since the last note."""

    def __init__(self) -> None:
        self._told = 0.0

    def note(self, step: str) -> pa.Table | None:
        """Return a NOTE row if memory has grown enough, else None."""
        peak = peak_bytes()
        if peak < self._told * GROWTH:
            return None
        self._told = peak
        return row_ids.note_row(step, peak_note())


class MemoryWatch:
    """Adds notes on the memory of the process to the rows of a stage."""

    def __init__(self, stage: str, run: Callable[[pa.Table], pa.Table]) -> None:
        self._stage = stage
        self._run = run
        self._growth = Growth()

    def __call__(self, table: pa.Table) -> pa.Table:
        result = self._run(table)
        note = self._growth.note(self._stage)
        return result if note is None else concat([result, note])


@dataclass(frozen=True)
class ReadWatch:
    """Adds notes on the memory of the process to the rows of a read task.

    Tasks of one reading in one process share a Growth, because they run one after the other."""

    reading: str
    """Id of the reading, which differs from earlier readings in the same process."""
    step: str
    read: Callable[[], Iterator[pa.Table]]

    def __call__(self) -> Iterator[pa.Table]:
        yield from self.read()
        note = _growth_of(self.reading).note(self.step)
        if note is not None:
            yield note


@lru_cache(maxsize=16)
def _growth_of(_reading: str) -> Growth:
    return Growth()
