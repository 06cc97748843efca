"""Handles stop signals. Runs an execution in a thread, which signals or observers can end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from batchinference.pipeline.error_classification import root_cause
from batchinference.pipeline.errors import Interrupted, LimitExceeded
from batchinference.pipeline.execution.execution_control import ExecutionControl
from batchinference.spec.lifecycle import DRAIN_SECONDS

POLL_SECONDS = 2.0
"""Minimum seconds from the end of one observation of a running job to the next."""
POLL_PAUSE = 10
"""The pause between two observations is at least this many times as long as an observation, because
an observation lists all commits."""
ABORT_SECONDS = 10.0
"""Maximum seconds to wait for the end of an aborted execution."""
STOPPING = (
    "stopping. Rows that were computed are written within {:g} s. "
    "A second signal (Ctrl-C) stops at once"
)
STOPPING_EARLY = "stopping. No row has been computed in this run"


class StopSignal:
    """A request to stop the job (SIGTERM, SIGINT). A second request stops the job immediately."""

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        self.say = say
        self.drain_seconds: float = DRAIN_SECONDS
        """Seconds in which running tasks may commit."""
        self.event = threading.Event()
        self.forced = threading.Event()
        self.signal: int | None = None
        self.has_run = False
        """Whether rows may have been computed."""
        self._announced = threading.Event()
        self._interrupts = False

    def ask(self, number: int, _: FrameType | None = None) -> None:
        """Handle a signal. The first signal asks to stop, the second to stop at once."""
        if self.event.is_set():
            self.forced.set()
        self.signal = number
        self.event.set()
        self._announced.set()
        if self._interrupts and self.forced.is_set():
            raise KeyboardInterrupt

    @contextmanager
    def announcing_stop(self) -> Iterator[None]:
        """Announce a stop at once during the block if no rows were computed: Ray may take long to
        start. A thread prints the message, because a signal handler may interrupt a print."""
        thread = threading.Thread(target=self._announce, name="stop", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._announced.set()
            thread.join()

    def _announce(self) -> None:
        self._announced.wait()
        if self.event.is_set() and not self.has_run:
            self.say(STOPPING_EARLY)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raise Interrupted in the block after a second signal, even if the signal came before. The
        block leaves its work as if the process was killed."""
        try:
            self._interrupts = True
            try:
                if self.forced.is_set():
                    self.check()
                yield
            finally:
                self._interrupts = False
        except KeyboardInterrupt:  # perhaps raised in the `finally` above
            self.check()
            raise

    def check(self) -> None:
        """Raise Interrupted if a stop was requested."""
        if self.event.is_set():
            raise Interrupted(f"stopped by {signal.Signals(self.signal or signal.SIGTERM).name}")


@contextmanager
def stop_on_signals(say: Callable[[str], None]) -> Iterator[StopSignal]:
    """Yield a StopSignal that SIGTERM and SIGINT set while the block runs. If stopping takes time,
    `say` gets a line for the user, possibly in another thread."""
    request = StopSignal(say)
    before = {number: signal.signal(number, request.ask)
              for number in (signal.SIGTERM, signal.SIGINT)}  # fmt: skip
    try:
        with request.announcing_stop():
            yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_monitored(
    run: Callable[[], None],
    control: ExecutionControl,
    observe: Callable[[], None],
    stop: StopSignal,
    poll_seconds: float = POLL_SECONDS,
    abort_seconds: float = ABORT_SECONDS,
) -> None:
    """Call `run`, the execution that `control` can end, in a thread. Until `run` returns, call
    `observe` at most every `poll_seconds`.

    After a stop request, or if `observe` raises LimitExceeded, running tasks may commit for
    `stop.drain_seconds`. Raises the failure of the execution, an error of `observe`, or Interrupted
    if a stop takes longer. In the last two cases, the execution is aborted first. Its thread is
    left running if it does not end within `abort_seconds`."""
    stop.has_run = True
    done, errors = _start(run)
    try:
        _watch(done, observe, stop, poll_seconds)
        if stop.event.is_set() and not done.is_set():
            stop.say(STOPPING.format(stop.drain_seconds))
            _drain(control, done, stop)
        if not done.is_set():
            stop.check()
    except BaseException as error:
        if isinstance(error, LimitExceeded):
            _drain(control, done, stop)
        if not done.is_set():
            control.give_up()
            done.wait(abort_seconds)
        raise
    if errors:
        stop.check()  # Ctrl-C also kills workers, which causes errors
        raise root_cause(errors[0]) from errors[0]


def _drain(control: ExecutionControl, done: threading.Event, stop: StopSignal) -> None:
    """Give the execution time to commit its running tasks."""
    control.drain()
    deadline = time.monotonic() + stop.drain_seconds
    while not (done.wait(0.1) or stop.forced.is_set() or time.monotonic() > deadline):
        pass


def _start(run: Callable[[], None]) -> tuple[threading.Event, list[BaseException]]:
    """Call `run` in a thread. Return an event that is set when the call has ended, and a list to
    which its failure is added."""
    done, errors = threading.Event(), list[BaseException]()

    def call() -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - passed to the main thread
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=call, name="dataset", daemon=True).start()
    return done, errors


def _watch(
    done: threading.Event, observe: Callable[[], None], stop: StopSignal, poll_seconds: float
) -> None:
    deadline = time.monotonic() + poll_seconds
    while not (done.wait(0.1) or stop.event.is_set()):
        began = time.monotonic()
        if began >= deadline:
            observe()
            ended = time.monotonic()
            deadline = ended + max(poll_seconds, POLL_PAUSE * (ended - began))
