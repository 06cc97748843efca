"""Lets the threads of a process take turns with its model, and measures how busy the model is.

While the model computes a batch in one thread, another thread prepares the next batch, and others
pass on results. So the model waits only for rows that are not there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Lock, local
from typing import TypeVar

Item = TypeVar("Item")


class _Thread(local):
    """What this thread does with the model."""

    prepares = computes = False
    waited = 0.0
    """Seconds in which it waited for other threads."""


class Turns:
    """Lets one thread at a time prepare a batch, and one compute a batch.

    A thread that has prepared a batch keeps others from preparing one until the model is free for
    it: at most two batches are in the memory of the device."""

    def __init__(self) -> None:
        self._preparing, self._computing = Lock(), Lock()
        self._thread = _Thread()

    @property
    def waited(self) -> float:
        """The seconds in which this thread has waited for other threads."""
        return self._thread.waited

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Wait until no other thread prepares a batch."""
        self._acquire(self._preparing)
        self._thread.prepares = True
        try:
            yield
        finally:
            self._thread.prepares = False
            self._preparing.release()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Wait until no other thread computes, and let another one prepare a batch meanwhile.
        Nothing happens if this thread computes already, or has prepared nothing."""
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
    """Divides the time of a process since its model first computed: into time in which it computed,
    waited for rows, and waited until its results were taken."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = Lock()
        self._threads = {"computing": 0, "working": 0, "passing_on": 0}
        """The number of threads that do each of these."""
        self._since: float | None = None
        self._clear()

    def _clear(self) -> None:
        self._seconds = {"compute_seconds": 0.0, "wait_seconds": 0.0, "blocked_seconds": 0.0}

    def computing(self) -> AbstractContextManager[None]:
        """Return a context in which the model computes."""
        return self._during("computing")

    def passing_on(self) -> AbstractContextManager[None]:
        """Return a context in which results are stored, and wait until they are taken."""
        return self._during("passing_on")

    def working(self, results: Iterator[Item]) -> Iterator[Item]:
        """Yield results. While a result is made, rows are prepared or computed, or results are
        converted."""
        while True:
            with self._during("working"):
                found = next(results, None)
            if found is None:
                return
            yield found

    def take_seconds(self) -> dict[str, float]:
        """Return the seconds since the last call, by what they were spent on."""
        with self._lock:
            self._account()
            taken = self._seconds
            self._clear()
            return taken

    @contextmanager
    def _during(self, what: str) -> Iterator[None]:
        self._change(what, 1)
        try:
            yield
        finally:
            self._change(what, -1)

    def _change(self, what: str, threads: int) -> None:
        with self._lock:
            self._account()
            self._threads[what] += threads
            if what == "computing" and self._since is None:
                self._since = self._clock()

    def _account(self) -> None:
        """Add the time since the last change."""
        if self._since is None:
            return
        now, threads = self._clock(), self._threads
        blocked = threads["passing_on"] and not threads["working"]
        name = "compute" if threads["computing"] else "blocked" if blocked else "wait"
        self._seconds[f"{name}_seconds"] += now - self._since
        self._since = now


TURNS, OCCUPANCY = Turns(), Occupancy()
"""Those of this process."""


@contextmanager
def computing() -> Iterator[None]:
    """While the block runs, the model computes, for this thread alone. A runtime prepares its
    inputs before, and converts its results after it: other threads do so while the block runs."""
    with TURNS.computing(), OCCUPANCY.computing():
        yield
