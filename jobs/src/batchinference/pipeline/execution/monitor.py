"""Watching over a running job: progress from its commits, the limit of bad rows, stop signals."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from batchinference.pipeline.error_attribution import root_cause
from batchinference.pipeline.errors import Interrupted
from batchinference.spec.lifecycle import DRAIN_SECONDS

POLL_SECONDS = 2.0
LAST_SECONDS = 10.0
"""What work that is given up has left to end."""
STOPPING = (
    f"stopping. Rows that were computed are written within {DRAIN_SECONDS:g} s. "
    "A second signal (Ctrl-C) stops at once"
)


class StopSignal:
    """Set when somebody asks the job to stop (SIGTERM, SIGINT); who asks twice wants it at once."""

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        self.say = say
        self.event = threading.Event()
        self.forced = threading.Event()
        self.signal: int | None = None

    def ask(self, number: int, _: FrameType | None = None) -> None:
        if self.event.is_set():
            self.forced.set()
        self.signal = number
        self.event.set()

    def check(self) -> None:
        """Raise Interrupted once somebody has asked."""
        if self.event.is_set():
            raise Interrupted(f"stopped by {signal.Signals(self.signal or signal.SIGTERM).name}")


@contextmanager
def stop_on_signals(say: Callable[[str], None]) -> Iterator[StopSignal]:
    """A StopRequest that SIGTERM and SIGINT set while the block runs. `say` gets a line for the
    user when that takes time."""
    request = StopSignal(say)
    before = {number: signal.signal(number, request.ask)
              for number in (signal.SIGTERM, signal.SIGINT)}  # fmt: skip
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Work(Protocol):
    """Something long that another thread can end."""

    def run(self) -> None: ...

    def drain(self) -> None:
        """Make `run` return soon: what is under way is committed, and nothing more begun."""

    def give_up(self) -> None:
        """Make `run` raise soon."""


def run_monitored(
    work: Work,
    observe: Callable[[], None],
    stop: StopSignal,
    poll_seconds: float = POLL_SECONDS,
) -> None:
    """Run `work` in a thread and call `observe` every few seconds until it ends.

    Work that somebody stops gets some time to commit what is under way. Raises the failure of
    `work`, what `observe` raises, or Interrupted when that was not enough. In the last two cases
    the work is given up, and the thread, should it not end in time, left behind.
    """
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            work.run()
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=run, name="dataset", daemon=True).start()
    try:
        _watch(done, observe, stop, poll_seconds)
        if stop.event.is_set() and not done.is_set():
            stop.say(STOPPING)
            work.drain()
            _wait(done, stop.forced)
        if not done.is_set():
            stop.check()
    except BaseException:
        if not done.is_set():
            work.give_up()
            done.wait(LAST_SECONDS)
        raise
    if errors:
        stop.check()  # Ctrl-C reaches the workers as well, and what they die of is not the cause
        raise root_cause(errors[0]) from errors[0]


def _watch(
    done: threading.Event, observe: Callable[[], None], stop: StopSignal, poll_seconds: float
) -> None:
    deadline = time.monotonic() + poll_seconds
    while not (done.wait(0.1) or stop.event.is_set()):
        if time.monotonic() >= deadline:
            observe()
            deadline = time.monotonic() + poll_seconds


def _wait(done: threading.Event, forced: threading.Event) -> None:
    deadline = time.monotonic() + DRAIN_SECONDS
    while not (done.wait(0.1) or forced.is_set() or time.monotonic() > deadline):
        pass
