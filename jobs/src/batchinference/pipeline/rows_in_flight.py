"""Counts the rows of a process that an engine or endpoint has not answered yet.

A batch may begin as soon as fewer than `wanted` rows wait for an answer. A single slow row thus
does not delay later batches. When the process stops, all batches are given up. If a row raises an
error that ends the job, the batch of the row is given up. For a batch that is given up, models
return the answers that they have, and `Unanswered` for other rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Condition
from typing import Any, TypeVar

Question = TypeVar("Question")


class Unanswered(Exception):
    """Stands for the answer to a row of a batch that was given up. The row neither fails nor is
    filtered. Its batch does not account for it, so another run computes it. `cause` is the error
    that ends the job, or None if the process stops."""

    def __init__(self, cause: Exception | None = None) -> None:
        super().__init__()
        self.cause = cause


GivenUp = Future[Exception | None]
"""A future that is done when a batch is given up. Its result is the `cause` of `Unanswered`."""


class RowsInFlight:
    """Counts rows without an answer. New batches wait while there are `wanted` or more."""

    def __init__(self) -> None:
        self.wanted = 1
        self.rows = 0
        self._changed = Condition()
        self._batches = set[_Batch]()
        self._batch: ContextVar[_Batch | None] = ContextVar("batch", default=None)

    def begin(self, rows: int) -> None:
        """Wait until fewer than `wanted` rows are in flight, and count the rows of a new batch."""
        with self._changed:
            self._changed.wait_for(lambda: self.rows < self.wanted)
            self.rows += rows

    @contextmanager
    def batch(self, rows: int) -> Iterator[None]:
        """The context of a batch that has begun. At its end, no row of the batch is in flight."""
        batch = _Batch(rows)
        token = self._batch.set(batch)
        with self._changed:
            self._batches.add(batch)
        try:
            yield
        finally:
            self._batch.reset(token)
            with self._changed:
                self._batches.discard(batch)
            self._end(batch, batch.rows)

    def give_up(self) -> None:
        """Give up the batches in progress: they end without waiting for further answers."""
        with self._changed:
            for batch in self._batches:
                _give_up(batch.given_up)

    @property
    def given_up(self) -> GivenUp:
        """A future that is done when the current batch is given up."""
        return (self._batch.get() or _Batch(0)).given_up

    def expect(self, rows: int) -> Callable[[], None]:
        """Record that the current batch expects `rows` answers, and that its other rows need none.
        Return a function to call once for each answer, in any thread."""
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
    """The number of rows of a batch without an answer, and whether the batch is given up."""

    def __init__(self, rows: int) -> None:
        self.rows, self.given_up = rows, GivenUp()


async def answers_of(
    ask: Callable[[Question], Coroutine[Any, Any, Any]],
    questions: Sequence[Question],
    given_up: GivenUp,
) -> list[Any]:
    """Ask all questions at the same time, and return the answers. An answer that is missing when
    `given_up` is done is `Unanswered`. If `ask` raises Unanswered, the batch is given up with the
    same cause. Raises the first other error."""

    async def answer(question: Question) -> Any:
        try:
            return await ask(question)
        except Unanswered as unanswered:
            _give_up(given_up, unanswered.cause)
            return unanswered

    if given_up.done():
        return [Unanswered(given_up.result()) for _ in questions]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(answer(question)) for question in questions]
            when_done(given_up, lambda _: [task.cancel() for task in tasks])
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    cause = given_up.result() if given_up.done() else None
    return [Unanswered(cause) if task.cancelled() else task.result() for task in tasks]


def _give_up(given_up: GivenUp, cause: Exception | None = None) -> None:
    with suppress(InvalidStateError):  # another thread has given up the batch
        given_up.set_result(cause)


def when_done(given_up: GivenUp, function: Callable[[Exception | None], object]) -> None:
    """When a future of another thread is done, call a function with its result in the current event
    loop."""
    asyncio.wrap_future(given_up).add_done_callback(lambda done: function(done.result()))


IN_FLIGHT = RowsInFlight()
"""The instance of this process."""
