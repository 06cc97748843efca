"""Runs the operator call by call. Between two calls, only the test changes anything."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from batchinference_operator.controller.cache import Cache
from batchinference_operator.controller.job_controller import JobController
from batchinference_operator.controller.work_queue import FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS
from batchinference_operator.kube.api_errors import Conflict, Refused, Unreachable
from batchinference_operator.observability.event_recorder import EventRecorder
from batchinference_operator.observability.metrics import Metrics
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.job_view import JobKey
from batchinference_operator.reconcile.observed_and_actions import DriverAnswer
from batchinference_operator.status.ray_job_view import RayJobView
from support.operator.fake_cluster import WATCHED, FakeCluster, FakeKubeApi, FakeWatches
from support.operator.fake_kuberay import FakeKubeRay
from support.operator.objects import CONFIG
from support.operator.virtual_time import ManualClock

IDLE = "get a key"
EXPECTED = (Conflict, Refused)
"""Errors that the server may return. Any other error is a bug in the operator."""
BEFORE: dict[str, Callable[[], Exception]] = {
    "conflict": lambda: Conflict("the object has been modified"),
    "refused": lambda: Refused("403: exceeded quota"),
    "unreachable": lambda: Unreachable("connection reset"),
}
AFTER: dict[str, Callable[[], Exception]] = {
    "no answer": lambda: Unreachable("504: gateway timeout")
}
FAULTS = (*BEFORE, *AFTER)
"""The faults of calls, before or after the server serves the call."""


@dataclass
class Call:
    """A call at which the operator waits. The test sends the fault to raise into it."""

    name: str

    def __await__(self) -> Generator[Call, str | None, str | None]:
        fault = yield self
        if fault in BEFORE:
            raise BEFORE[fault]()
        return fault


class SteppedKubeApi(FakeKubeApi):
    """A gateway whose calls wait until the test lets them continue, with or without a fault."""

    fault: str | None = None

    async def begin(self, call: str) -> None:
        self.fault = await Call(call)

    def end(self, call: str) -> None:
        if self.fault in AFTER:
            raise AFTER[self.fault]()

    async def post_event(self, body: Any) -> bool:
        raise AssertionError("Events are posted outside of the reconcile loop")


@dataclass
class SteppedDrivers:
    """The answers of drivers at the last poll. The test calls `poll`."""

    kuberay: FakeKubeRay
    answered: Callable[[JobKey], None] = lambda _: None
    slow: int = 0
    answers: dict[tuple[str, str, bool], DriverAnswer] = field(default_factory=dict)
    wanted: dict[tuple[str, str, bool], tuple[JobKey, RayJobView]] = field(default_factory=dict)

    def latest(
        self, job: JobKey, ray_job: RayJobView, tokens: tuple[str, ...], interval: float
    ) -> DriverAnswer | None:
        driver = ray_job.uid, ray_job.cluster, ray_job.ended
        self.wanted[driver] = job, ray_job
        return self.answers.get(driver)

    def stop(self, job: JobKey, ray_job: RayJobView, tokens: tuple[str, ...]) -> None:
        self.kuberay.stop_driver(ray_job)

    def poll(self, *, lost: bool = False) -> None:
        """Poll each driver that was asked for since the last poll. If `lost`, no answer arrives."""
        wanted, self.wanted = self.wanted, {}
        for driver, (job, ray_job) in wanted.items():
            answer = DriverAnswer(reached=False) if lost else self.kuberay.answer(ray_job)
            self.answers[driver] = answer
            self.answered(job)


@dataclass
class SteppedQueue:
    """The operator's queue on a manual clock."""

    clock: ManualClock
    waiting: list[JobKey] = field(default_factory=list)
    due_at: dict[JobKey, float] = field(default_factory=dict)
    failures: Counter[JobKey] = field(default_factory=Counter)
    defects: list[BaseException] = field(default_factory=list)

    @property
    def due(self) -> float | None:
        """When the next key becomes ready."""
        return min(self.due_at.values(), default=None)

    @property
    def ready(self) -> bool:
        for key, at in list(self.due_at.items()):
            if at <= self.clock.seconds:
                self.add(key)
        return bool(self.waiting)

    def add(self, key: JobKey) -> None:
        self.due_at.pop(key, None)
        if key not in self.waiting:
            self.waiting.append(key)

    def add_after(self, key: JobKey, seconds: float) -> None:
        if key not in self.waiting:
            at = self.clock.seconds + seconds
            self.due_at[key] = min(at, self.due_at.get(key, at))

    def is_queued(self, key: JobKey) -> bool:
        return key in self.waiting

    async def get(self) -> JobKey:
        while not self.ready:
            await Call(IDLE)
        return self.waiting.pop(0)

    def done(self, key: JobKey) -> None:
        pass

    def count_cpu_time(self, key: JobKey) -> AbstractContextManager[None]:
        """Pause no namespace: the clock is manual."""
        return nullcontext()

    def add_rate_limited(self, key: JobKey) -> float:
        met = sys.exc_info()[1]
        if met is not None and not isinstance(met, EXPECTED):
            self.defects.append(met)
        delay = min(FIRST_RETRY_SECONDS * 2.0 ** min(self.failures[key], 10), MAX_RETRY_SECONDS)
        self.failures[key] += 1
        self.add_after(key, delay)
        return delay

    def forget(self, key: JobKey) -> None:
        self.failures.pop(key, None)

    def drop(self, key: JobKey) -> None:
        self.forget(key)
        self.due_at.pop(key, None)


class SteppedOperator:
    """An operator that can be killed between any two calls."""

    def __init__(
        self,
        cluster: FakeCluster,
        kuberay: FakeKubeRay,
        clock: ManualClock,
        config: Config = CONFIG,
    ) -> None:
        self.cluster = cluster
        self.kuberay = kuberay
        self.clock = clock
        self.config = config
        self.watches = FakeWatches(cluster)
        self.start()

    def start(self) -> None:
        self.queue = SteppedQueue(self.clock)
        queue: Any = self.queue
        cache = Cache(self.config)
        self.drivers = SteppedDrivers(self.kuberay)
        api = SteppedKubeApi(self.cluster)
        recorder = EventRecorder(api, Metrics(), self.clock.now)
        self.controller = JobController(
            api, self.drivers, self.config, recorder, cache, queue, self.clock.now
        )
        self.watches.controller = self.controller
        self.watches.listed = listed = set()
        self.controller.is_listed = lambda _: len(listed) == len(self.watches.stores)
        self.controller.is_refused = lambda _: len(listed) < len(self.watches.stores)
        self.work: Coroutine[Call, str | None, None] = self._run()
        self.call = self.work.send(None)

    async def _run(self) -> None:
        """List the existing objects, with retries, and then run the operator's work loop."""
        while True:
            try:
                await self.controller.prime([])
                break
            except EXPECTED:
                continue
        for kind in WATCHED:
            self.watches.relist(kind)
        await self.controller.work()

    def kill(self) -> None:
        """Kill the operator and start another."""
        self.work.close()
        self.start()

    def replace(self, calls: int, late: int) -> list[BaseException]:
        """Start another operator, and return the defects of the replaced one.

        After some calls of the new operator, the replaced one continues for `late` calls from its
        old state, as after a pause of its process, and ends.
        """
        replaced, call, queue = self.work, self.call, self.queue
        self.start()
        for _ in range(calls):
            self.step()
        for _ in range(late):
            if call.name != IDLE:
                call = replaced.send(None)
        replaced.close()
        return queue.defects

    @property
    def idle(self) -> bool:
        return self.call.name == IDLE and not self.queue.ready

    def step(self, fault: str | None = None) -> None:
        """Serve the call at which the operator waits, and run the operator to the next call."""
        if not self.idle:
            self.call = self.work.send(None if self.call.name == IDLE else fault)
