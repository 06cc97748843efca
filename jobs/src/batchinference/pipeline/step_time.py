"""Measures the time of reading, of steps and of writing, and reports it in notes."""

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

SHARE, MIN_SECONDS = 0.1, 0.1
"""The first note is due at once. A later note is due when the time since the last note is at least
MIN_SECONDS, and SHARE of the time in all earlier notes. A long job thus has few notes."""
MIN_LOAD_SECONDS = 0.01
"""Shorter loading times are left out of notes."""
COUNTS = {"reused", "cached", "cache_errors", *TokenKind}
"""The keys of notes that count reused results, errors of the cache, or tokens."""
Batch = TypeVar("Batch")


def preparation_of(step: str) -> str:
    """Return the name in reports of the tasks that prepare the inputs of a model step."""
    return f"{step} (preparation)"


class SharedClock:
    """A clock that divides time among concurrent measurements. While two of them run, each gets
    half a second per second. The sum of all measurements is the time in which at least one ran."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._lock = Lock()
        self._running = 0
        self._read = self._share = 0.0

    def begin(self) -> float:
        """Return the start time of a measurement."""
        return self._change(1)

    def end(self) -> float:
        """Return the end time of a measurement."""
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
"""The clock of each step, shared by all threads that run the step."""


class StepTime:
    """Measures the rows and seconds of a step in one process. `step` is the name in the notes."""

    def __init__(self, step: str) -> None:
        self._step = step
        self._more: Callable[[], dict[str, float]] = dict
        self._noted = 0.0
        """Seconds in the notes so far."""
        self._clear()

    def _clear(self) -> None:
        self._rows, self._seconds, self._load = 0, 0.0, 0.0

    @contextmanager
    def measure(self, rows: Callable[[], int]) -> Iterator[None]:
        """Measure the block if it raises no error. At its end, `rows()` returns the processed
        rows."""
        clock = _CLOCKS[self._step]
        began = clock.begin()
        try:
            yield
        finally:
            ended = clock.end()
        self._rows += rows()
        self._seconds += ended - began

    def of(self, batches: Iterator[Batch], rows: Callable[[Batch], int]) -> Iterator[Batch]:
        """Yield the batches, and measure how long each takes. `rows` counts the rows of a batch."""
        made: list[Batch] = []
        while True:
            with self.measure(lambda: sum(map(rows, made))):
                made.extend(itertools.islice(batches, 1))
            if not made:
                return
            yield made.pop()

    def for_other_thread(self) -> StepTime:
        """Return a new measurement of the same step for another thread. It takes over the loading
        time, because the thread that loaded the step may process no rows."""
        other = StepTime(self._step)
        other._more = self._more
        other._load, self._load = self._load, 0.0
        return other

    def note_also(self, take_seconds: Callable[[], dict[str, float]]) -> None:
        """Add the result of `take_seconds` (seconds by name) to each note."""
        self._more = take_seconds

    def add_load(self, seconds: float) -> None:
        """Add seconds in which the process loaded the model or code of the step."""
        self._load += seconds

    def take_notes(self) -> list[tuple[str, str]]:
        """Return a note (JSON) of the time since the last note, if a note is due (see SHARE)."""
        due = max(MIN_SECONDS, SHARE * self._noted) if self._noted else 0.0
        return self.take_rest() if self._seconds >= due else []

    def take_rest(self) -> list[tuple[str, str]]:
        """Return a note (JSON) of the measurements since the last note, if they have rows."""
        if not self._rows:
            return []
        note = {"rows": self._rows, "seconds": self._seconds}
        note |= self._more()
        if self._load >= MIN_LOAD_SECONDS:
            note["load_seconds"] = self._load
        self._noted += self._seconds
        self._clear()
        return [(self._step, json.dumps({name: round(value, 4) for name, value in note.items()}))]
