"""Lets the threads of a process take turns with its model, and measures how busy the model is.

While one thread computes a batch with the model, a second thread prepares the next batch, and
others pass on results. The model then rarely waits for anything but rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Lock, local
from typing import TypeVar

Item = TypeVar("Item")


class _Thread(local):
    """What the current thread does with the model."""

    prepares = computes = False
    waited = 0.0
    """Seconds in which the thread has waited for other threads."""


class Turns:
    """Lets only one thread at a time prepare a batch, and one thread compute a batch. A thread that
    has prepared a batch keeps the right to prepare until it may compute. The device therefore has
    at most two batches in its memory."""

    def __init__(self) -> None:
        self._preparing, self._computing = Lock(), Lock()
        self._thread = _Thread()

    @property
    def waited_seconds(self) -> float:
        """The seconds in which the current thread has waited for other threads."""
        return self._thread.waited

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Wait until no other thread prepares. The next may begin when this one computes or
        ends."""
        self._acquire(self._preparing)
        self._thread.prepares = True
        try:
            yield
        finally:
            self._thread.prepares = False
            self._preparing.release()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Wait until no other thread computes. Another thread may prepare while the block runs.
        Does nothing if this thread is already computing or is not in `preparing`."""
        if self._thread.computes or not self._thread.prepares:
            yield
            return
        self._acquire(self._computing)
        self._preparing.release()
        self._thread.computes = True
        try:
            yield
        finally:
            self._thread.computes = False
            self._computing.release()
            self._acquire(self._preparing)

    def _acquire(self, lock: Lock) -> None:
        began = time.perf_counter()
        lock.acquire()
        self._thread.waited += time.perf_counter() - began


class Occupancy:
    """Divides the time since the model first computed into three parts: computing, waiting for
    rows, and being blocked (waiting until results are accepted)."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = Lock()
        self._threads = {"computing": 0, "working": 0, "passing_on": 0}
        """The number of threads in each activity."""
        self._since: float | None = None
        self._clear()

    def _clear(self) -> None:
        self._seconds = {"compute_seconds": 0.0, "wait_seconds": 0.0, "blocked_seconds": 0.0}

    def computing(self) -> AbstractContextManager[None]:
        """Return a context in which this thread computes with the model."""
        return self._during("computing")

    def passing_on(self) -> AbstractContextManager[None]:
        """Return a context in which this thread stores results and waits for their acceptance."""
        return self._during("passing_on")

    def working(self, results: Iterator[Item]) -> Iterator[Item]:
        """Yield results. The thread counts as working while it makes a result: it prepares or
        computes rows, or converts results."""
        while True:
            with self._during("working"):
                result = next(results, None)
            if result is None:
                return
            yield result

    def take_seconds(self) -> dict[str, float]:
        """Return the seconds of each part since the last call."""
        with self._lock:
            self._account()
            seconds = self._seconds
            self._clear()
            return seconds

    @contextmanager
    def _during(self, activity: str) -> Iterator[None]:
        self._change(activity, 1)
        try:
            yield
        finally:
            self._change(activity, -1)

    def _change(self, activity: str, threads: int) -> None:
        with self._lock:
            self._account()
            self._threads[activity] += threads
            if activity == "computing" and self._since is None:
                self._since = self._clock()

    def _account(self) -> None:
        """Add the time since the last call to the part that the activities of threads determine."""
        if self._since is None:
            return
        now, threads = self._clock(), self._threads
        blocked = threads["passing_on"] and not threads["working"]
        name = "compute" if threads["computing"] else "blocked" if blocked else "wait"
        self._seconds[f"{name}_seconds"] += now - self._since
        self._since = now


TURNS, OCCUPANCY = Turns(), Occupancy()
"""The instances of this process."""


@contextmanager
def computing() -> Iterator[None]:
    """Give the model to this thread alone while the block runs. A runtime should prepare inputs
    before the block and convert results after it, because other threads can then compute."""
    with TURNS.computing(), OCCUPANCY.computing():
        yield
