"""Measures the time of reading, of steps and of writing, as notes for the report."""

from __future__ import annotations

import itertools
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

from batchinference.spec.progress import TokenKind

SHARE, LEAST_SECONDS = 0.1, 0.1
"""A note is taken as soon as its work is this share of all earlier work, and at least this long.
Few notes then describe a long job, and they lack at most this share of it."""
LEAST_LOAD_SECONDS = 0.01
"""Loading that takes less time is not noted."""
COUNTS = {"reused", "cached", "cache_errors", *TokenKind}
"""The numbers in notes of steps that reuse results, or count tokens."""
Batch = TypeVar("Batch")


def preparation_of(step: str) -> str:
    """Return the name under which the time is reported that tasks take to prepare the inputs of a
    model step for its pool."""
    return f"{step} (preparation)"


class SharedClock:
    """A clock for measurements that run at the same time: a second is divided among them. The sum
    of all measurements is the time in which at least one of them ran."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._lock = Lock()
        self._running = 0
        self._read = self._share = 0.0

    def begin(self) -> float:
        """Return the time at which a measurement begins."""
        return self._change(1)

    def end(self) -> float:
        """Return the time at which a measurement ends."""
        return self._change(-1)

    def _change(self, measurements: int) -> float:
        with self._lock:
            now = self._seconds()
            if self._running:
                self._share += (now - self._read) / self._running
            self._read = now
            self._running += measurements
            return self._share


_CLOCKS: defaultdict[str, SharedClock] = defaultdict(lambda: SharedClock(time.perf_counter))
"""The clock of each step, for all threads that run it."""


class StepTime:
    """The rows and the seconds of a step in one process. Notes have its name."""

    def __init__(self, step: str) -> None:
        self._step = step
        self._more: Callable[[], dict[str, float]] = dict
        self._noted = 0.0
        """Seconds in the notes that were taken."""
        self._clear()

    def _clear(self) -> None:
        self._rows, self._seconds, self._load = 0, 0.0, 0.0

    @contextmanager
    def measured(self, rows: Callable[[], int]) -> Iterator[None]:
        """Add the time of the block, after which the step has run over `rows()` rows."""
        clock = _CLOCKS[self._step]
        began = clock.begin()
        try:
            yield
        finally:
            ended = clock.end()
        self._rows += rows()
        self._seconds += ended - began

    def of(self, batches: Iterator[Batch], rows: Callable[[Batch], int]) -> Iterator[Batch]:
        """Yield the batches, and add the time in which they are made. `rows` returns the number of
        rows of a batch."""
        found: list[Batch] = []

        def counted() -> int:
            return sum(map(rows, found))

        while True:
            with self.measured(counted):
                found.extend(itertools.islice(batches, 1))
            if not found:
                return
            yield found.pop()

    def for_other_thread(self) -> StepTime:
        """Return a new measurement of the same step in this process. It takes over the time of
        loading, as the thread that has loaded the step may compute no rows."""
        other = StepTime(self._step)
        other._more = self._more
        other._load, self._load = self._load, 0.0
        return other

    def note_also(self, take_seconds: Callable[[], dict[str, float]]) -> None:
        """Add what `take_seconds` returns, seconds by name, to each note."""
        self._more = take_seconds

    def add_load(self, seconds: float) -> None:
        """Add seconds in which the process loaded the model or the code of the step."""
        self._load += seconds

    def take_notes(self) -> list[tuple[str, str]]:
        """Return the measurements since the last note as JSON, if they are worth a note."""
        wanted = max(LEAST_SECONDS, SHARE * self._noted) if self._noted else 0.0
        return self.take_rest() if self._seconds >= wanted else []

    def take_rest(self) -> list[tuple[str, str]]:
        """Return the measurements since the last note as JSON, if there are any."""
        if not self._rows:
            return []
        note = {"rows": self._rows, "seconds": self._seconds}
        note |= self._more()
        if self._load >= LEAST_LOAD_SECONDS:
            note["load_seconds"] = self._load
        self._noted += self._seconds
        self._clear()
        return [(self._step, json.dumps({name: round(value, 4) for name, value in note.items()}))]
