"""Monitoring work that runs in a thread: how it ends, and which calls the monitor makes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from batchinference.pipeline.errors import (
    BadInput,
    Interrupted,
    JobFailure,
    LimitExceeded,
    TooManyErrors,
)
from batchinference.pipeline.execution import stop_signals
from batchinference.pipeline.execution.execution_control import ExecutionControl
from batchinference.pipeline.execution.stop_signals import (
    STOPPING,
    StopSignal,
    run_monitored,
    stop_on_signals,
)
from batchinference.spec.lifecycle import DRAIN_SECONDS
from batchinference.spec.report import JobState
from support.jobs.without_ray import run_without_ray, small_job, write_input

QUICK = 0.01


class Done(ExecutionControl):
    """Work that ends at once or raises."""

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__()
        self._error = error

    def run(self) -> None:
        if self._error:
            raise self._error


class Long(ExecutionControl):
    """Work that runs until it is released or given up."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self.ended = False

    def run(self) -> None:
        self.released.wait(60)
        self.ended = True
        if self.given_up:
            raise RuntimeError("given up")

    def give_up(self) -> None:
        super().give_up()
        self.released.set()


@pytest.fixture
def long() -> Iterator[Long]:
    """Yield work that is released at the end of the test at the latest."""
    work = Long()
    yield work
    work.released.set()


def nothing() -> None:
    """Observe nothing."""


def monitor(work: Done, stop: StopSignal | None = None) -> None:
    run_monitored(work.run, work, nothing, stop or StopSignal())


def refuse() -> None:
    """Raise TooManyErrors."""
    raise TooManyErrors("enough")


def test_observer_is_called_repeatedly_in_the_callers_thread(long: Long) -> None:
    threads: list[int] = []

    def observe() -> None:
        threads.append(threading.get_ident())
        if len(threads) == 3:
            long.released.set()

    run_monitored(long.run, long, observe, StopSignal(), poll_seconds=QUICK)
    assert len(threads) >= 3
    assert set(threads) == {threading.get_ident()}


@pytest.mark.parametrize(("seconds", "calls"), [(0.0, 49), (0.1, 47), (1.0, 9), (30.0, 1)])
def test_slow_observer_takes_at_most_a_tenth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, seconds: float, calls: int
) -> None:
    """Within 100 seconds, with a pause of at least two seconds after each call."""
    clock, began = [0.0], list[float]()

    def observe() -> None:
        began.append(clock[0])
        clock[0] += seconds

    def wait(timeout: float) -> bool:
        clock[0] += timeout
        return clock[0] > 100

    monkeypatch.setattr(stop_signals, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    done: Any = SimpleNamespace(wait=wait)
    stop_signals._watch(done, observe, StopSignal(), 2.0)
    assert len(began) == pytest.approx(calls, abs=2)
    assert len(began) * seconds <= max(0.1 * clock[0], seconds)


def test_failure_of_the_work_is_raised() -> None:
    with pytest.raises(BadInput, match="not there"):
        monitor(Done(BadInput("not there")))


@pytest.mark.parametrize(
    "error", [KeyError("x"), SystemExit(3)], ids=["an error", "an end of the program"]
)
def test_other_exceptions_become_a_failure(error: BaseException) -> None:
    with pytest.raises(JobFailure, match=type(error).__name__) as raised:
        monitor(Done(error))
    assert raised.value.reason == "Application"


def test_exception_of_the_observer_ends_the_work(long: Long) -> None:
    with pytest.raises(TooManyErrors, match="enough"):
        run_monitored(long.run, long, refuse, StopSignal(), poll_seconds=QUICK)
    assert (long.given_up, long.ended) == (True, True)


def test_work_that_has_used_its_tokens_commits_what_it_has(
    long: Long, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long, "drain", long.released.set)

    def exceed() -> None:
        raise LimitExceeded("enough")

    with pytest.raises(LimitExceeded, match="enough"):
        run_monitored(long.run, long, exceed, StopSignal(), poll_seconds=QUICK)
    assert (long.given_up, long.ended) == (False, True)


def test_work_that_does_not_end_is_abandoned(long: Long, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long, "give_up", nothing)
    with pytest.raises(TooManyErrors, match="enough"):
        run_monitored(long.run, long, refuse, StopSignal(), poll_seconds=QUICK, abort_seconds=QUICK)
    assert not long.ended


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_signal_interrupts_work(long: Long, number: signal.Signals) -> None:
    printed: list[str] = []
    began = time.monotonic()
    with stop_on_signals(printed.append) as stop:
        stop.drain_seconds = QUICK
        threading.Timer(0.2, os.kill, (os.getpid(), number)).start()
        with pytest.raises(Interrupted, match=f"stopped by {number.name}"):
            run_monitored(long.run, long, nothing, stop)
    assert (long.draining, long.given_up, long.ended) == (True, True, True)
    assert printed == [STOPPING.format(QUICK)]
    assert time.monotonic() - began < DRAIN_SECONDS


def test_work_that_ends_on_request_is_not_abandoned(
    long: Long, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long, "drain", long.released.set)
    stop = StopSignal()
    stop.ask(signal.SIGTERM)
    run_monitored(long.run, long, nothing, stop)
    assert (long.given_up, long.ended) == (False, True)


def test_second_request_ends_at_once(long: Long) -> None:
    stop = StopSignal()
    for _ in range(2):
        stop.ask(signal.SIGTERM)
    with pytest.raises(Interrupted, match="SIGTERM"):
        run_monitored(long.run, long, nothing, stop)
    assert long.given_up


def twice(stop: StopSignal) -> None:
    for _ in range(2):
        stop.ask(signal.SIGINT)


def test_second_request_before_work_ends_it_at_once() -> None:
    stop = StopSignal()
    twice(stop)
    with pytest.raises(Interrupted), stop.interrupting():
        pytest.fail("the work begins")


@pytest.mark.parametrize(
    "work",
    [
        "input.file_input._list_now",
        "job.prepare_pass",
        "job.limited_to_first_rows",
        "execution.prepared_pass.PreparedPass.close",
        "execution.executor.Executor.rewrite_files",
        "job.swap_in_replacement",
    ],
)
def test_second_request_ends_work_before_and_after_the_rows(tmp_path: Path, work: str) -> None:
    mode = "append" if "list" in work else "overwrite"
    job = small_job(write_input(tmp_path / "in"), tmp_path / "out", mode=mode)
    job["spec"]["read"] |= {"onChange": "recompute"} if "list" in work else {}
    assert run_without_ray(job).state == JobState.SUCCEEDED
    stop = StopSignal()

    def long(*_: object, **__: object) -> None:
        twice(stop)

    with patch(f"batchinference.pipeline.{work}", long):
        report = run_without_ray(job, stop=stop)
    assert (report.reason, report.message) == ("Interrupted", "stopped by SIGINT")
    assert run_without_ray(job).state == JobState.SUCCEEDED


def test_work_broken_by_a_signal_is_interrupted() -> None:
    """Ctrl-C reaches every process of a terminal, so workers may die before the monitor notices."""
    stop = StopSignal()

    class Dies(Done):
        def run(self) -> None:
            stop.ask(signal.SIGINT)
            raise RuntimeError("worker died")

    with pytest.raises(Interrupted, match="SIGINT"):
        monitor(Dies(), stop)


def test_late_signal_changes_nothing() -> None:
    stop = StopSignal()

    class Quick(Done):
        def run(self) -> None:
            stop.ask(signal.SIGTERM)

    monitor(Quick(), stop)
    assert stop.event.is_set()


def test_signal_handlers_are_restored() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    printed: list[str] = []
    with stop_on_signals(printed.append) as stop:
        assert [signal.getsignal(number) for number in numbers] == [stop.ask, stop.ask]
    assert [signal.getsignal(number) for number in numbers] == before
