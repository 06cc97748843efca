"""The loop as a whole, with an API server, a KubeRay and a driver in memory."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from batchinference.spec.report import JobState
from batchinference_operator.runtime.driver import Answer
from support.fake_cluster import FakeDriver, operated
from support.operator_objects import (
    NAMESPACE,
    RUNNING,
    SETTINGS,
    UID,
    pod_body,
    ray_job_body,
    waiting,
)
from support.virtual_time import clock, in_leaping_time, until
from support.world import LAGS, World


@pytest.mark.parametrize("lag", LAGS, ids=str)
@in_leaping_time
async def test_a_job_goes_from_creation_to_complete(lag: dict[str, float]) -> None:
    world = World()
    async with world.operated(lag=lag):
        await world.a_job_ends()
        await asyncio.sleep(100)
    kinds = {kind for kind, _ in world.cluster.objects}
    assert kinds == {"BatchInference", "ConfigMap", "Secret", "RayJob"}
    status = world.cluster.status()
    assert status["phase"] == "Succeeded"
    assert status["progress"] == {"rows": 100, "total": 100}
    assert status["completionTime"] == "2026-03-01T12:01:00Z"
    assert (status["rayJobName"], status["rayClusterName"]) == ("job-1", "job-1-cluster")
    ray_job = world.cluster.get("RayJob", "job-1")
    assert ray_job is not None
    assert ray_job["spec"]["ttlSecondsAfterFinished"] == 0, "its cluster has been released"


@pytest.mark.parametrize("lag", LAGS, ids=str)
@in_leaping_time
async def test_the_phases_come_in_their_order_and_progress_only_grows(
    lag: dict[str, float],
) -> None:
    world = World()
    async with world.operated(lag=lag):
        await world.a_job_ends()
    assert world.phases == ["Starting", "Running", "Finalizing", "Succeeded"]
    rows = [status["progress"]["rows"] for status in world.cluster.history if "progress" in status]
    assert rows == sorted(rows)


@pytest.mark.parametrize("lag", LAGS, ids=str)
@in_leaping_time
async def test_no_status_is_written_that_says_nothing_new(lag: dict[str, float]) -> None:
    world = World()
    async with world.operated(lag=lag):
        await world.a_job_ends()
        await asyncio.sleep(1000)
    history = world.cluster.history
    assert all(before != after for before, after in itertools.pairwise(history))
    assert len(history) < 15


@in_leaping_time
async def test_a_job_whose_driver_fails_fails_in_its_words() -> None:
    world = World()
    async with world.operated():
        await world.a_job_ends(JobState.FAILED)
    assert (world.phase(), world.reason()) == ("Failed", "Application")


@in_leaping_time
async def test_a_finished_job_costs_nothing_more() -> None:
    world = World()
    async with world.operated() as controller:
        await world.a_job_ends()
        await asyncio.sleep(100)
        calls, asked = len(world.calls), len(world.driver.asked)
        controller.queue.add((NAMESPACE, "job"))
        await asyncio.sleep(10_000)
        assert (len(world.calls), len(world.driver.asked)) == (calls, asked)


@in_leaping_time
async def test_the_driver_is_asked_with_the_jobs_token() -> None:
    world = World()
    async with world.operated():
        await world.a_job_ends()
        uid = world.cluster.objects["BatchInference", "job"]["metadata"]["uid"]
    assert set(world.driver.asked) == {(NAMESPACE, "job-1", SETTINGS.token(uid))}


@in_leaping_time
async def test_many_jobs_go_their_way_with_few_workers() -> None:
    world = World()
    names = [f"job-{index}" for index in range(40)]
    async with world.operated(workers=3):
        for name in names:
            world.cluster.apply(name)
        await asyncio.gather(*(world.kuberay(name).run() for name in names))
        await until(lambda: all(map(world.over, names)))
    assert {world.phase(name) for name in names} == {"Succeeded"}


@in_leaping_time
async def test_a_pod_that_cannot_start_shows_in_the_status_and_goes_when_it_starts() -> None:
    world = World()
    async with world.operated():
        world.cluster.apply()
        await world.kuberay().start()
        world.cluster.put(pod_body(**waiting("ImagePullBackOff", "no such image")))
        await until(lambda: world.reason() == "ImagePull")
        world.cluster.put(pod_body(phase="Running", containerStatuses=[]))
        await until(lambda: world.reason() == "Starting")


@in_leaping_time
async def test_an_operator_that_starts_among_finished_jobs_has_nothing_to_do() -> None:
    world = World()
    async with world.operated():
        await world.a_job_ends()
        await asyncio.sleep(10)
    calls = len(world.calls)
    async with world.operated():
        await asyncio.sleep(1000)
    assert len(world.calls) == calls


@in_leaping_time
async def test_an_operator_that_was_away_when_the_job_ended_writes_its_end() -> None:
    world = World()
    world.cluster.apply()
    async with world.operated():
        await until(lambda: world.phase() == "Starting")
    await world.kuberay().run()
    await asyncio.sleep(86_400)
    assert not world.over()
    async with world.operated():
        await until(world.over)
    assert world.phase() == "Succeeded"
    assert world.cluster.status()["completionTime"] == "2026-03-01T12:01:00Z"


@in_leaping_time
async def test_cancelled_workers_end_at_once_in_the_midst_of_a_look() -> None:
    world = World()
    forever = asyncio.Event()

    class Slow(FakeDriver):
        async def ask(self, *_: Any) -> Answer:
            forever.set()
            await asyncio.sleep(1e6)
            return Answer(reached=False)

    world.cluster.put(ray_job_body(**RUNNING))
    world.cluster.apply()
    world.cluster.change("BatchInference", "job", {"metadata": {"uid": UID}})
    async with operated(world.gateway, Slow()):
        await forever.wait()
        began = clock()
    assert clock() - began < 1
