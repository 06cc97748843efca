"""How much memory this process has taken."""

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
"""Bytes of what getrusage counts in."""


def peak_bytes() -> int:
    """The most memory that this process had at any time, what it shares with others included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


def peak_note() -> str:
    return json.dumps({"peak_bytes": peak_bytes()})


class Growth:
    """What to tell of a process, whenever it has grown well beyond what was told before."""

    def __init__(self) -> None:
        self._told = 0.0

    def note(self, step: str) -> pa.Table | None:
        """A NOTE row, if there is news."""
        peak = peak_bytes()
        if peak < self._told * GROWTH:
            return None
        self._told = peak
        return row_ids.note_row(step, peak_note())


class MemoryWatch:
    """Adds notes on the process's memory to a stage's rows."""

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
    """Adds notes to the rows of a read task. Those of one reading, in one process, tell what is new
    together: they run one after the other."""

    reading: str
    """Tells the reading from others that the process may have done before."""
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
