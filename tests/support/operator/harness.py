"""Runs the operator on a cluster in memory, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from batchinference.spec.report import JobState
from batchinference_operator.controller.cache import Cache
from batchinference_operator.controller.driver_poller import MAX_POLLS, DriverPoller
from batchinference_operator.controller.job_controller import JobController
from batchinference_operator.controller.work_queue import WorkQueue
from batchinference_operator.observability.event_recorder import EventRecorder
from batchinference_operator.observability.metrics import Metrics
from batchinference_operator.reconcile.cluster_tokens import cluster_tokens
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.job_view import JobView
from support.operator.fake_cluster import WATCHED, FakeCluster, FakeKubeApi, FakeWatches, Object
from support.operator.fake_kuberay import FakeDriver, RayJobScript
from support.operator.objects import CONFIG, RUNNING
from support.operator.virtual_time import clock, until, wall_clock

LAGS: list[dict[str, float]] = [{}, {"BatchInference": 3}, {"RayJob": 3}, {"RayJob": 0.2}]
"""Delays of the watches in seconds, by kind."""


def _watch(
    cluster: FakeCluster, controller: JobController, lag: Mapping[str, float]
) -> FakeWatches:
    """Deliver all events of a cluster to a controller, delayed by `lag` seconds for each kind."""
    loop = asyncio.get_running_loop()

    class DelayedWatches(FakeWatches):
        def push(self, kind: str, event: str | None, body: Object) -> None:
            super().push(kind, event, body)
            loop.call_later(lag.get(kind, 0), self.deliver, kind)

    watches = DelayedWatches(cluster)
    watches.controller = controller
    for kind in WATCHED:
        watches.relist(kind)
    return watches


@asynccontextmanager
async def running_operator(
    api: FakeKubeApi,
    driver: FakeDriver,
    *,
    workers: int = 2,
    lag: Mapping[str, float] | None = None,
    config: Config = CONFIG,
    recorder: EventRecorder | None = None,
) -> AsyncIterator[JobController]:
    """Run the operator while the block runs, or until the first of its workers ends."""
    cache, polls = Cache(config), DriverPoller(driver, clock)
    # in virtual time, no reconcile takes CPU time
    queue = WorkQueue(cpu_clock=lambda: 0.0)
    controller = JobController(
        api, polls, config, recorder or EventRecorder(api, Metrics()), cache, queue, wall_clock
    )
    await controller.prime([])
    watches = _watch(api.cluster, controller, lag or {})
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(controller.work()) for _ in range(workers)]
        tasks += [group.create_task(polls.work()) for _ in range(MAX_POLLS)]
        try:
            yield controller
        finally:
            api.cluster.watchers.remove(watches.enqueue)
            for task in tasks:
                task.cancel()


class Harness:
    """A cluster, a driver and the operator's gateway. `calls` are the calls of the API server."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.driver = FakeDriver()
        self.calls: list[tuple[float, str]] = []
        self.api = FakeKubeApi(self.cluster, before=self.record)

    def record(self, call: str) -> None:
        self.calls.append((clock(), call))

    def fail_call(self, call: str, fault: Exception) -> None:
        """Make a call of the API server fail from now on."""

        def fail(each: str) -> None:
            self.record(each)
            if each == call:
                raise fault

        self.api.before = fail

    def ray_job(self, name: str = "job") -> RayJobScript:
        return RayJobScript(self.cluster, self.driver, name)

    def phase(self, name: str = "job") -> Any:
        return self.cluster.status(name).get("phase")

    def reason(self, name: str = "job") -> Any:
        return self.cluster.status(name).get("conditions", [{}])[0].get("reason")

    def message(self, name: str = "job") -> Any:
        return self.cluster.status(name).get("conditions", [{}])[0].get("message")

    def is_finished(self, name: str = "job") -> bool:
        body = self.cluster.get("BatchInference", name)
        return body is not None and JobView.of(body).finished

    def token(self, ray_job: str = "job-1") -> str:
        """Return the token of a RayJob's Ray cluster."""
        return cluster_tokens(
            CONFIG, JobView.of(self.cluster.objects["BatchInference", "job"]), ray_job
        )[0]

    def count(self, call: str) -> int:
        return sum(each == call for _, each in self.calls)

    @property
    def phases(self) -> list[str]:
        """The phases of the job, in order."""
        return [
            phase for phase, _ in itertools.groupby(s["phase"] for _, s in self.cluster.history)
        ]

    def operator(self, **config: Any) -> AbstractAsyncContextManager[JobController]:
        """Run the operator."""
        return running_operator(self.api, self.driver, **config)

    @asynccontextmanager
    async def recorded_operator(self, **config: Any) -> AsyncIterator[Metrics]:
        """Run the operator with Events and metrics."""
        metrics = Metrics()
        recorder = EventRecorder(self.api, metrics, wall_clock)
        async with self.operator(recorder=recorder, **config):
            posting = asyncio.create_task(recorder.work())
            yield metrics
            await asyncio.sleep(1)
            posting.cancel()

    async def start_job(self) -> None:
        """Create a job and wait for its RayJob."""
        self.cluster.apply()
        await until(lambda: self.phase() == "Starting")

    async def run_job(self) -> RayJobScript:
        """Create a job whose driver runs and has not reported yet."""
        self.cluster.apply()
        await until(lambda: self.cluster.get("RayJob", "job-1"))
        kuberay = self.ray_job()
        await kuberay.step(**RUNNING)
        return kuberay

    async def finish_job(self, last: JobState = JobState.SUCCEEDED) -> None:
        """Create a job and take it to its end."""
        self.cluster.apply()
        await self.finish_run(last)

    async def finish_run(self, last: JobState = JobState.SUCCEEDED) -> None:
        await self.ray_job().run(last)
        await until(self.is_finished)
