"""Counts the rows of a process for which an engine or endpoint has not answered yet.

A batch may begin as soon as fewer than `wanted` rows wait for an answer. So a single slow row of a
batch does not delay the rows of later batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Condition


class RowsInFlight:
    """Counts rows without an answer, and delays new batches while there are `wanted` or more."""

    def __init__(self) -> None:
        self.wanted = 1
        self.rows = 0
        self._changed = Condition()
        self._batch: ContextVar[_Batch | None] = ContextVar("batch", default=None)

    def begin(self, rows: int) -> None:
        """Wait until fewer than `wanted` rows are in flight, and count the rows of a new batch."""
        with self._changed:
            self._changed.wait_for(lambda: self.rows < self.wanted)
            self.rows += rows

    @contextmanager
    def batch(self, rows: int) -> Iterator[None]:
        """The context of a batch that has begun. At the end, no row of the batch is in flight."""
        batch = _Batch(rows)
        token = self._batch.set(batch)
        try:
            yield
        finally:
            self._batch.reset(token)
            self._end(batch, batch.rows)

    def expect(self, rows: int) -> Callable[[], None]:
        """Record that the current batch expects `rows` answers; its other rows need no answer.
        Return a function that must be called once per answer, and may be called in any thread."""
        batch = self._batch.get() or _Batch(0)
        self._end(batch, batch.rows - rows)
        return lambda: self._end(batch, 1)

    def _end(self, batch: _Batch, rows: int) -> None:
        with self._changed:
            ended = max(0, min(batch.rows, rows))  # a row asked twice may get two answers
            batch.rows -= ended
            self.rows -= ended
            self._changed.notify()


class _Batch:
    """How many rows of a batch have no answer yet."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


IN_FLIGHT = RowsInFlight()
"""The instance of this process."""
