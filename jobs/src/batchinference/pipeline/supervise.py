"""Watching over a running job: progress from its commits, the limit of bad rows, stop signals."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

import pyarrow.parquet as pq

from batchinference.pipeline.attempt import Attempt
from batchinference.pipeline.failures import Interrupted, TooManyErrors, cause_of
from batchinference.pipeline.manifest import Counts
from batchinference.pipeline.sizing import RowCount
from batchinference.spec.error_policy import ErrorPolicy

POLL_SECONDS = 2.0
LAST_SECONDS = 10.0
"""What work that is given up has left to end."""


class StopRequest:
    """Set when somebody asks the job to stop (SIGTERM, SIGINT)."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.signal: int | None = None

    def ask(self, number: int, _: FrameType | None = None) -> None:
        self.signal = number
        self.event.set()

    def check(self) -> None:
        """Raise Interrupted once somebody has asked."""
        if self.event.is_set():
            raise Interrupted(f"stopped by {signal.Signals(self.signal or signal.SIGTERM).name}")


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """A StopRequest that SIGTERM and SIGINT set while the block runs."""
    request = StopRequest()
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

    def give_up(self) -> None:
        """Make `run` raise soon."""


def supervise(
    work: Work,
    observe: Callable[[], None],
    stop: StopRequest,
    poll_seconds: float = POLL_SECONDS,
) -> None:
    """Run `work` in a thread and call `observe` every few seconds until it ends.

    Raises the failure of `work`, what `observe` raises, or Interrupted. In the last two cases the
    work is given up, and the thread, should it not end in time, left behind.
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
    except BaseException:
        work.give_up()
        done.wait(LAST_SECONDS)
        raise
    if errors:
        stop.check()  # Ctrl-C reaches the workers as well, and what they die of is not the cause
        raise cause_of(errors[0]) from errors[0]


def _watch(
    done: threading.Event, observe: Callable[[], None], stop: StopRequest, poll_seconds: float
) -> None:
    deadline = time.monotonic() + poll_seconds
    while not done.wait(0.1):
        stop.check()
        if time.monotonic() >= deadline:
            observe()
            deadline = time.monotonic() + poll_seconds


def check_errors(
    policy: ErrorPolicy, counts: Counts, total: RowCount | None, attempt: Attempt
) -> None:
    """Raise TooManyErrors once more rows are bad than the policy allows.

    A percentage is of the whole input, so it is judged early only where that is known.
    """
    if counts.failed == 0:
        return
    if (most := policy.max_rows) is not None and counts.failed > most:
        limit = f"errors.maxRows ({most})"
    elif (
        policy.max_percent is not None
        and total is not None
        and (100 * counts.failed > policy.max_percent * max(total.rows, 1))
    ):
        limit = f"errors.maxPercent ({policy.max_percent:g} % of {total.rows} rows)"
    elif not policy.tolerant:
        limit = "none is allowed unless spec.errors says so"
    else:
        return
    raise TooManyErrors(
        f"{counts.failed} row(s) failed, limit: {limit}. One of them: {_example(attempt)}"
    )


def _example(attempt: Attempt) -> str:
    """One bad row in words."""
    for manifest in attempt.manifests():
        if manifest.errors is not None:
            place = attempt.layout.errors / manifest.errors.name
            with place.filesystem.open_input_file(place.path) as source:
                row = pq.read_table(source).slice(0, 1).to_pylist()[0]
            return f"row {row['row']} of {row['path']}, step '{row['step']}': {row['error']}"
    return "(unknown)"
