"""Polls drivers for their reports, separately from the reconcile workers.

Drivers answer through the heads of Ray clusters, which users control, so answers may be slow, wrong
or missing. A reconcile uses the last answer and never waits for one. Each new answer adds the job
to the work queue.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from batchinference_operator.controller.driver_client import DashboardClient
from batchinference_operator.controller.work_queue import WorkQueue
from batchinference_operator.observability.logging import log_context
from batchinference_operator.reconcile.job_view import JobKey
from batchinference_operator.reconcile.observed_and_actions import DriverAnswer
from batchinference_operator.status.ray_job_view import RayJobView

MAX_POLLS = 256
MAX_POLLS_PER_NAMESPACE = 4
"""Maximum number of concurrent polls, in total and per namespace. The total suffices for
POLLS_PER_SECOND polls of SLOW_SECONDS each, and also for the polls of drivers with backoff."""
SLOW_SECONDS = 1.0
"""A driver that takes longer than this to answer is polled with backoff."""
FIRST_BACKOFF = 10.0
MAX_SLOW_BACKOFF = 40.0
MAX_BACKOFF = 160.0
"""Backoff in seconds for drivers that are slow or do not answer. The backoff doubles with each
poll, up to MAX_SLOW_BACKOFF for slow drivers and MAX_BACKOFF for drivers that do not answer."""
SILENT_POLLS = 3
SILENT_SECONDS = 30.0
"""A driver is silent if SILENT_POLLS consecutive polls and SILENT_SECONDS have passed without an
answer. Until then, its last answer is used, because a busy head may answer late. With the backoff
between these polls, the status reports a silent driver within a minute."""
MAX_AGE_SECONDS = 300.0
"""Age from which an answer is not used. This age is long, because drivers in a namespace with many
slow drivers are polled less often."""
FORGET_SECONDS = 600.0
"""Seconds after which an answer that no reconcile reads is dropped."""
_UNSTABLE = "its address changes before it answers"
logger = logging.getLogger("batchinference.operator")


class DriverKey(NamedTuple):
    """Identifies a driver to poll. The key changes at the end of the RayJob, so that the driver is
    polled at once."""

    namespace: str
    job: str
    ray_job: str
    ended: bool


@dataclass
class _DriverState:
    """The state of the polls of a driver. If its head changes, its state is replaced."""

    ray_job: RayJobView
    tokens: tuple[str, ...]
    heard_at: float
    """When the driver last answered; before the first answer, when the polls began."""
    unread_since: float
    """When a reconcile last got an answer."""
    unread_polls: int = 0
    """The number of polls since then. Unlike the rest of the state, the number is kept if the head
    changes. The address of the head is untrusted: an address that changes before each answer must
    not hide that the driver is silent."""
    token: str = ""
    """The last token that the driver accepted; empty if it is unknown."""
    answer: DriverAnswer | None = None
    """The result that reconciles use, from the time `answered_at`."""
    answered_at: float = 0.0
    polled_at: float = -inf
    """When the driver was last polled."""
    missed: int = 0
    """The number of polls without an answer since `heard_at`."""
    problem: str = ""
    used_at: float = 0.0
    """When a reconcile last used this state."""
    backoff: float = 0.0
    """Minimum seconds between `polled_at` and the next poll."""
    pending: bool = False
    """Whether the driver is queued or being polled."""
    stop: bool = False
    """Whether the driver must be asked to stop."""


@dataclass(eq=False)
class DriverPoller:
    """Polls drivers with a limit per namespace, so that no namespace slows down another."""

    driver: DashboardClient
    clock: Callable[[], float] = time.monotonic
    count: Callable[[str], None] = lambda _: None
    """Called with the result of each poll, as the metric names it."""
    answered: Callable[[JobKey], None] = lambda _: None
    """Called with the key of a job after each poll of its driver."""
    _states: dict[DriverKey, _DriverState] = field(default_factory=dict)
    _slow: set[DriverKey] = field(default_factory=set)
    _queue: WorkQueue[DriverKey] = field(
        default_factory=lambda: WorkQueue(max_active=MAX_POLLS_PER_NAMESPACE)
    )

    @property
    def slow(self) -> int:
        """The number of drivers with backoff, which do not count for the poll interval."""
        return len(self._slow)

    def latest(
        self, job: JobKey, ray_job: RayJobView, tokens: tuple[str, ...], interval: float
    ) -> DriverAnswer | None:
        """Return the last result, unless it is too old; None before the first result.

        A few missed polls are not a result. The driver is polled again `interval` seconds after the
        last poll, or later with backoff.
        """
        key, state = self._state_of(job, ray_job, tokens)
        if not state.pending:
            state.pending = True
            due = state.polled_at + max(state.backoff, interval)
            self._queue.add_after(key, max(0.0, due - self.clock()))
        now = self.clock()
        if state.answer is not None:
            state.unread_since, state.unread_polls = now, 0
            is_old = now - state.answered_at >= MAX_AGE_SECONDS
            return replace(state.answer, reached=False, report=None) if is_old else state.answer
        if _is_silent(state.unread_polls, now - state.unread_since):
            return DriverAnswer(reached=False, problem=state.problem or _UNSTABLE)
        return None

    def stop(self, job: JobKey, ray_job: RayJobView, tokens: tuple[str, ...]) -> None:
        """Ask a driver, in the background, to commit what it has computed and exit."""
        key, state = self._state_of(job, ray_job, tokens)
        state.stop = state.pending = True
        self._queue.add(key)

    async def work(self) -> None:
        """Run one of MAX_POLLS workers until it is cancelled."""
        while True:
            key = await self._queue.get()
            with log_context(key.namespace, key.job):
                await self._poll(key)
            self._queue.done(key)

    def _state_of(
        self, job: JobKey, ray_job: RayJobView, tokens: tuple[str, ...]
    ) -> tuple[DriverKey, _DriverState]:
        """Return the key and the state of a driver, and mark the state as used."""
        key, now = DriverKey(*job, ray_job.uid, ray_job.ended), self.clock()
        state = self._states.pop(key, None) or _DriverState(ray_job, tokens, now, now)
        former = state.ray_job
        if (former.cluster, former.head_ip) != (ray_job.cluster, ray_job.head_ip):
            unread = state.unread_since, state.unread_polls
            state = _DriverState(ray_job, tokens, now, *unread, stop=state.stop)
        self._states[key] = state
        state.ray_job, state.tokens, state.used_at = ray_job, tokens, now
        self._drop_unused()
        return key, state

    async def _poll(self, key: DriverKey) -> None:
        state = self._states.get(key)
        if state is None:
            return
        if state.stop:
            state.stop = state.pending = False
            await self._stop(key.namespace, state)
            return
        start = self.clock()
        try:
            answer = await self._poll_driver(key.namespace, state)
        except Exception:
            logger.exception("the driver's answer cannot be read")
            answer = DriverAnswer(reached=False, problem="its answer cannot be read")
        self._record(key, state, answer, self.clock() - start)
        if self._states.get(key) is state:
            (self._slow.add if state.backoff else self._slow.discard)(key)
        self.answered((key.namespace, key.job))

    async def _stop(self, namespace: str, state: _DriverState) -> None:
        try:
            for token in [state.token] if state.token else state.tokens:
                await self.driver.stop(namespace, state.ray_job, token)
        except Exception:
            logger.exception("the driver cannot be asked to stop")

    async def _poll_driver(self, namespace: str, state: _DriverState) -> DriverAnswer:
        """Poll with the last accepted token. If none is known, try all: keys may be rotated."""
        answer = DriverAnswer(reached=False)
        for token in [state.token] if state.token else state.tokens:
            answer = await self.driver.poll(namespace, state.ray_job, token)
            state.token = token if answer.reached else ""
            if not answer.unauthorized:
                break
        return answer

    def _record(
        self, key: DriverKey, state: _DriverState, answer: DriverAnswer, seconds: float
    ) -> None:
        slow = seconds > SLOW_SECONDS
        if answer.reached and not slow:
            state.backoff = 0.0
        else:
            maximum = MAX_SLOW_BACKOFF if answer.reached else MAX_BACKOFF
            state.backoff = min(2 * state.backoff or FIRST_BACKOFF, maximum)
        if answer.problem and state.problem != answer.problem:
            level = logging.WARNING if answer.unauthorized else logging.INFO
            logger.log(level, "the driver of %s: %s", state.ray_job.name, answer.problem)
        now = self.clock()
        self._states.get(key, state).unread_polls += 1  # the head may have changed
        state.problem, state.polled_at, state.pending = answer.problem, now, False
        state.missed = 0 if answer.reached else state.missed + 1
        state.heard_at = now if answer.reached else state.heard_at
        silent = _is_silent(state.missed, now - state.heard_at)
        if answer.reached or answer.unauthorized or silent or key.ended:
            state.answer, state.answered_at = answer, now
        self.count(_result_label(answer, slow=slow))

    def _drop_unused(self) -> None:
        """Drop states that no reconcile has used recently. The states are ordered by last use."""
        limit = self.clock() - FORGET_SECONDS
        while self._states:
            key, state = next(iter(self._states.items()))
            if state.pending or state.used_at >= limit:
                return
            del self._states[key]
            self._slow.discard(key)


def _is_silent(polls: int, seconds: float) -> bool:
    return polls >= SILENT_POLLS and seconds >= SILENT_SECONDS


def _result_label(answer: DriverAnswer, *, slow: bool) -> str:
    if answer.reached:
        return "slow" if slow else "answered"
    return "unauthorized" if answer.unauthorized else "failed"
