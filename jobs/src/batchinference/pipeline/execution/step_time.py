"""Measures how long a step takes, for the report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHARE, LEAST_SECONDS = 0.1, 1.0
"""A note is taken as soon as its work is this share of all earlier work, and at least this long.
Few notes then describe a long job, and they lack at most this share of it."""


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
