"""How much memory this process has taken."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable

import pyarrow as pa

from batchinference.pipeline import rows
from batchinference.pipeline.blocks import concat

GROWTH = 1.1
_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes of what getrusage counts in."""


def peak_bytes() -> int:
    """The most memory that this process had at any time, what it shares with others included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


def peak_note() -> str:
    return json.dumps({"peak_bytes": peak_bytes()})


class MemoryWatch:
    """Adds a note on the process's memory to a stage's rows, whenever it has grown well beyond
    what was told before."""

    def __init__(self, stage: str, run: Callable[[pa.Table], pa.Table]) -> None:
        self._stage = stage
        self._run = run
        self._told = 0.0

    def __call__(self, table: pa.Table) -> pa.Table:
        result = self._run(table)
        peak = peak_bytes()
        if peak < self._told * GROWTH:
            return result
        self._told = peak
        return concat([result, rows.note_row(self._stage, peak_note())])
