"""An event loop in which hours pass at once: when there is nothing to do, the clock leaps on."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, TypeVar

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
BEGINNING = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


class _LeapingSelector(selectors.DefaultSelector):
    """Waits for nothing. A wait without an end, in which nothing can ever happen, is an error."""

    leapt = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise AssertionError("everybody waits, and nobody will ever be woken")
        self.leapt += max(timeout, 0.001)
        return ready


class LeapingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock starts at 0 and moves only in leaps."""

    def __init__(self) -> None:
        self._leaping = _LeapingSelector()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.leapt


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in leaping time. It must not use sockets."""
    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        return runner.run(coroutine)


def in_leaping_time(
    test: Callable[Arguments, Coroutine[Any, Any, None]],
) -> Callable[Arguments, None]:
    """Decorates a test whose seconds are to cost nothing."""

    @functools.wraps(test)
    def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        run(test(*args, **kwargs))

    return wrapped


def clock() -> float:
    """Seconds of the running loop."""
    return asyncio.get_running_loop().time()


def wall_clock() -> datetime:
    """The time of day, as the running loop has it."""
    return BEGINNING + timedelta(seconds=clock())


async def until(holds: Callable[[], object], seconds: float = 600.0) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - what others do sets no event
            await asyncio.sleep(0.25)
