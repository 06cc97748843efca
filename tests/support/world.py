"""A cluster in memory with all that the operator talks to."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.model import JobView
from batchinference_operator.reconcile.reconcile import finished
from batchinference_operator.runtime.controller import Controller
from batchinference_operator.runtime.metrics import Metrics
from batchinference_operator.runtime.recorder import Recorder
from batchinference_operator.runtime.signals import Signals
from support.fake_cluster import FakeCluster, FakeDriver, KubeRay, MemoryGateway, operated
from support.operator_objects import RUNNING
from support.virtual_time import clock, until, wall_clock

LAGS: list[dict[str, float]] = [{}, {"BatchInference": 3}, {"RayJob": 3}, {"RayJob": 0.2}]
"""Seconds by which the watches of a kind are late."""


class World:
    """A cluster with all that the operator talks to. `calls` are its calls of the API server."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.driver = FakeDriver()
        self.calls: list[tuple[float, str]] = []
        self.gateway = MemoryGateway(self.cluster, before=self.called)

    def called(self, call: str) -> None:
        self.calls.append((clock(), call))

    def fails(self, call: str, fault: Exception) -> None:
        """From now on a call of the API server raises."""

        def fail(each: str) -> None:
            self.called(each)
            if each == call:
                raise fault

        self.gateway.before = fail

    def kuberay(self, name: str = "job") -> KubeRay:
        return KubeRay(self.cluster, self.driver, name)

    def phase(self, name: str = "job") -> Any:
        return self.cluster.status(name).get("phase")

    def reason(self, name: str = "job") -> Any:
        return self.cluster.status(name).get("conditions", [{}])[0].get("reason")

    def over(self, name: str = "job") -> bool:
        body = self.cluster.get("BatchInference", name)
        return body is not None and finished(JobView.of(body))

    def count(self, call: str) -> int:
        return sum(each == call for _, each in self.calls)

    @property
    def phases(self) -> list[str]:
        """The phases of the job in their order, each as long as it lasted."""
        return [phase for phase, _ in itertools.groupby(s["phase"] for s in self.cluster.history)]

    def operated(self, **settings: Any) -> AbstractAsyncContextManager[Controller]:
        """The operator at work in it."""
        return operated(self.gateway, self.driver, **settings)

    @asynccontextmanager
    async def recorded(self, **settings: Any) -> AsyncIterator[Metrics]:
        """The operator at work in it, with Events and metrics."""
        metrics = Metrics()
        recorder = Recorder(self.gateway, metrics, wall_clock)
        async with self.operated(signals=Signals(metrics, recorder), **settings):
            posting = asyncio.create_task(recorder.work())
            yield metrics
            await asyncio.sleep(1)
            posting.cancel()

    # --- what a job goes through ---------------------------------------------------------

    async def a_job_starts(self) -> None:
        """A job is created, and its RayJob."""
        self.cluster.apply()
        await until(lambda: self.phase() == "Starting")

    async def a_job_runs(self) -> KubeRay:
        """A job is created, and KubeRay runs its driver, of which nothing is heard yet."""
        self.cluster.apply()
        await until(lambda: self.cluster.get("RayJob", "job-1"))
        kuberay = self.kuberay()
        await kuberay.step(**RUNNING)
        return kuberay

    async def a_job_ends(self, last: JobState = JobState.SUCCEEDED) -> None:
        """A job is created, runs to its end, and the operator has seen it."""
        self.cluster.apply()
        await self.its_run_ends(last)

    async def its_run_ends(self, last: JobState = JobState.SUCCEEDED) -> None:
        await self.kuberay().run(last)
        await until(self.over)
