"""Measures the time of reading, of steps and of writing, as notes for the report."""

from __future__ import annotations

import itertools
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Lock, get_ident
from typing import TypeVar

SHARE, LEAST_SECONDS = 0.1, 0.1
"""A note is taken as soon as its work is this share of all earlier work, and at least this long.
Few notes then describe a long job, and they lack at most this share of it."""
LEAST_LOAD_SECONDS = 0.01
"""Loading that takes less time is not noted."""
Batch = TypeVar("Batch")


def preparation_of(step: str) -> str:
    """Return the name under which the time is reported that tasks take to prepare the inputs of a
    model step for its pool."""
    return f"{step} (preparation)"


class ThreadCpuTimes:
    """The CPU time of threads that are measured on their own, while they are measured."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._began: dict[int, float] = {}
        """The CPU seconds of each such thread when its measurement began."""
        self._ended = 0.0
        """The CPU seconds of all measurements that have ended."""

    @contextmanager
    def this_thread(self) -> Iterator[None]:
        """Measure the current thread on its own."""
        thread = get_ident()
        with self._lock:
            self._began[thread] = time.thread_time()
        try:
            yield
        finally:
            with self._lock:
                self._ended += time.thread_time() - self._began.pop(thread)

    def other_cpu_time(self) -> float:
        """Return the CPU seconds of the process without those of measured threads."""
        with self._lock:
            running = sum(_cpu_since(began, thread) for thread, began in self._began.items())
            return time.process_time() - self._ended - running


def _cpu_since(began: float, thread: int) -> float:
    """Return the CPU seconds of a running thread since it had used `began` seconds. 0 on macOS,
    where they are counted when the measurement ends."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return 0.0
    return time.clock_gettime(time.pthread_getcpuclockid(thread)) - began


_THREADS = ThreadCpuTimes()


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


_CLOCKS: defaultdict[str, tuple[SharedClock, SharedClock]] = defaultdict(
    lambda: (SharedClock(time.perf_counter), SharedClock(_THREADS.other_cpu_time))
)
"""The clocks for the seconds and for the CPU seconds of each step, for all threads that run it."""


class StepTime:
    """The rows, the seconds and the CPU seconds of a step in one process. Notes have its name.

    With `of_thread`, the CPU seconds are those of the current thread, because other threads do
    other work meanwhile. Otherwise they are those of the process, because libraries compute in
    threads of their own, but without those that are measured with `of_thread`."""

    def __init__(self, step: str, *, of_thread: bool = False) -> None:
        self._step = step
        self._of_thread = of_thread
        self._more: Callable[[], dict[str, float]] = dict
        self._noted = 0.0
        """Seconds in the notes that were taken."""
        self._clear()

    def _clear(self) -> None:
        self._rows, self._seconds, self._cpu = 0, 0.0, 0.0
        self._load = 0.0

    @contextmanager
    def measured(self, rows: Callable[[], int]) -> Iterator[None]:
        """Add the time of the block, after which the step has run over `rows()` rows."""
        clock, cpu_clock = (
            (SharedClock(time.perf_counter), SharedClock(time.thread_time))
            if self._of_thread
            else _CLOCKS[self._step]
        )
        with _THREADS.this_thread() if self._of_thread else nullcontext():
            began, cpu = clock.begin(), cpu_clock.begin()
            try:
                yield
            finally:
                ended, cpu_ended = clock.end(), cpu_clock.end()
            self._rows += rows()
            self._seconds += ended - began
            self._cpu += cpu_ended - cpu

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
        other = StepTime(self._step, of_thread=self._of_thread)
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
        note = {"rows": self._rows, "seconds": self._seconds, "cpu_seconds": self._cpu}
        note |= self._more()
        if self._load >= LEAST_LOAD_SECONDS:
            note["load_seconds"] = self._load
        self._noted += self._seconds
        self._clear()
        return [(self._step, json.dumps({name: round(value, 4) for name, value in note.items()}))]
