"""Counts the rows of a process that an engine or an endpoint has not answered yet.

A batch begins when fewer rows than wanted wait for an answer. So the slowest row of a batch keeps
no rows of later batches away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Condition


class RowsInFlight:
    """The number of rows without an answer. Batches begin while it is less than `wanted`."""

    def __init__(self) -> None:
        self.wanted = 1
        self.rows = 0
        self._changed = Condition()
        self._batch: ContextVar[_Batch | None] = ContextVar("batch", default=None)

    def begin(self, rows: int) -> None:
        """Wait until fewer rows than wanted are in flight, and add the rows of a batch."""
        with self._changed:
            self._changed.wait_for(lambda: self.rows < self.wanted)
            self.rows += rows

    @contextmanager
    def batch(self, rows: int) -> Iterator[None]:
        """Yield while a batch that has begun is computed. Its rows end with it at the latest."""
        batch = _Batch(rows)
        token = self._batch.set(batch)
        try:
            yield
        finally:
            self._batch.reset(token)
            self._end(batch, batch.rows)

    def asks(self, rows: int) -> Callable[[], None]:
        """Record for how many rows the batch of this thread asks; the others need no answer. Return
        what any thread calls for each answer."""
        batch = self._batch.get() or _Batch(0)
        self._end(batch, batch.rows - rows)
        return lambda: self._end(batch, 1)

    def _end(self, batch: _Batch, rows: int) -> None:
        with self._changed:
            ended = max(0, min(batch.rows, rows))  # a row that is asked twice ends once
            batch.rows -= ended
            self.rows -= ended
            self._changed.notify()


class _Batch:
    """The number of rows of a batch without an answer."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


IN_FLIGHT = RowsInFlight()
"""Those of this process."""
