"""An event loop whose virtual clock jumps to the next timer, and a clock that the test sets."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, TypeVar

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
BEGINNING = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


class _VirtualSelector(selectors.DefaultSelector):
    """A selector that never waits. An infinite wait without any pending event is an error."""

    elapsed = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise AssertionError("deadlock: all tasks wait and no timer is set")
        self.elapsed += max(timeout, 0.001)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock starts at 0 and jumps to the next timer."""

    def __init__(self) -> None:
        self._selector_ = _VirtualSelector()
        super().__init__(self._selector_)

    def time(self) -> float:
        return self._selector_.elapsed


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine, which must not use sockets, in virtual time. Return its result."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)


def in_virtual_time(
    test: Callable[Arguments, Coroutine[Any, Any, None]],
) -> Callable[Arguments, None]:
    """Run a test in virtual time."""

    @functools.wraps(test)
    def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        run(test(*args, **kwargs))

    return wrapped


@dataclass
class ManualClock:
    """A clock that the test sets."""

    seconds: float = 0.0

    def now(self) -> datetime:
        return BEGINNING + timedelta(seconds=self.seconds)


def seconds_of(moment: datetime) -> float:
    """Return the seconds from the start of the clocks to this moment."""
    return (moment - BEGINNING).total_seconds()


def clock() -> float:
    """Return the seconds since the running loop started."""
    return asyncio.get_running_loop().time()


def wall_clock() -> datetime:
    """Return the date and time in the running loop."""
    return BEGINNING + timedelta(seconds=clock())


async def until(holds: Callable[[], object], seconds: float = 600.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.25)
