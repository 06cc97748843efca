"""The reconcile loop, with an API server, a KubeRay and a driver in memory."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from batchinference_operator.reconcile.observed_and_actions import DriverAnswer
from support.operator.fake_kuberay import FakeDriver
from support.operator.harness import LAGS, Harness, running_operator
from support.operator.objects import NAMESPACE, RUNNING, UID, ray_job_body
from support.operator.virtual_time import clock, in_virtual_time, until


@pytest.mark.parametrize("lag", LAGS, ids=str)
@in_virtual_time
async def test_job_runs_from_creation_to_complete(harness: Harness, lag: dict[str, float]) -> None:
    async with harness.operator(lag=lag):
        await harness.finish_job()
        await asyncio.sleep(1000)
    kinds = {kind for kind, _ in harness.cluster.objects}
    assert kinds == {"BatchInference", "ConfigMap", "Secret", "RayJob", "PodDisruptionBudget"}
    status = harness.cluster.status()
    assert status["phase"] == "Succeeded"
    assert status["progress"] == {"rows": 100, "total": 100}
    assert status["completionTime"] == "2026-03-01T12:01:00Z"
    assert (status["rayJobName"], status["rayClusterName"]) == ("job-1", "job-1-cluster")
    ray_job = harness.cluster.objects["RayJob", "job-1"]
    assert ray_job["spec"]["ttlSecondsAfterFinished"] == 0, "its cluster has been released"
    assert harness.phases == ["Starting", "Running", "Finalizing", "Succeeded"]
    history = [status for _, status in harness.cluster.history]
    rows = [written["progress"]["rows"] for written in history if "progress" in written]
    assert rows == sorted(rows)
    assert all(before != after for before, after in itertools.pairwise(history))
    assert len(history) < 15


@in_virtual_time
async def test_finished_job_causes_no_calls(harness: Harness) -> None:
    async with harness.operator() as controller:
        await harness.finish_job()
        await asyncio.sleep(100)
        calls, asked = len(harness.calls), len(harness.driver.asked)
        controller.queue.add((NAMESPACE, "job"))
        await asyncio.sleep(10_000)
        assert (len(harness.calls), len(harness.driver.asked)) == (calls, asked)
    async with harness.operator():
        await asyncio.sleep(1000)
    assert len(harness.calls) == calls, "after a restart"


@in_virtual_time
async def test_driver_is_polled_with_the_token_of_the_job(harness: Harness) -> None:
    async with harness.operator():
        await harness.finish_job()
    assert set(harness.driver.asked) == {(NAMESPACE, "job-1", harness.token())}


@in_virtual_time
async def test_many_jobs_finish_with_few_workers(harness: Harness) -> None:
    names = [f"job-{index}" for index in range(40)]
    async with harness.operator(workers=3):
        for name in names:
            harness.cluster.apply(name)
        await asyncio.gather(*(harness.ray_job(name).run() for name in names))
        await until(lambda: all(map(harness.is_finished, names)))
    assert {harness.phase(name) for name in names} == {"Succeeded"}


@in_virtual_time
async def test_restarted_operator_writes_a_missed_end(harness: Harness) -> None:
    harness.cluster.apply()
    async with harness.operator():
        await until(lambda: harness.phase() == "Starting")
    await harness.ray_job().run()
    await asyncio.sleep(86_400)
    assert not harness.is_finished()
    async with harness.operator():
        await until(harness.is_finished)
    assert harness.phase() == "Succeeded"
    assert harness.cluster.status()["completionTime"] == "2026-03-01T12:01:00Z"


@in_virtual_time
async def test_worker_is_cancelled_during_a_reconcile(harness: Harness) -> None:
    asked = asyncio.Event()

    class HangingDriver(FakeDriver):
        async def poll(self, *_: Any) -> DriverAnswer:
            asked.set()
            await asyncio.sleep(1e6)
            return DriverAnswer(reached=False)

    harness.cluster.put(ray_job_body(**RUNNING))
    harness.cluster.apply()
    harness.cluster.patch("BatchInference", "job", {"metadata": {"uid": UID}})
    async with running_operator(harness.api, HangingDriver()):
        await asked.wait()
        began = clock()
    assert clock() - began < 1


@in_virtual_time
async def test_job_start_takes_five_calls(harness: Harness) -> None:
    harness.cluster.apply()
    async with harness.operator():
        await until(lambda: harness.phase() == "Starting")
        await until(lambda: clock() > 1)
    made = sorted(call for _, call in harness.calls)
    created = ["ConfigMap", "PodDisruptionBudget", "RayJob", "Secret"]
    assert made == [*(f"create {kind}" for kind in created), "patch status"]
