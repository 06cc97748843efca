"""The loop when people delete jobs and RayJobs, and make them anew."""

from __future__ import annotations

import asyncio

import pytest

from batchinference_operator.reconcile.clock import stamp
from batchinference_operator.reconcile.looks import REST_SECONDS
from batchinference_operator.runtime.pod_cache import DOUBT_SECONDS
from support.operator_objects import (
    NAMESPACE,
    OTHER_UID,
    RUNNING,
    placed,
    pod_body,
    ray_job_body,
)
from support.virtual_time import clock, in_leaping_time, until, wall_clock
from support.world import LAGS, World


@in_leaping_time
async def test_a_deleted_job_is_forgotten() -> None:
    world = World()
    async with world.operated():
        await world.a_job_starts()
        world.cluster.delete("BatchInference", "job")
        world.cluster.delete("RayJob", "job-1")
        await asyncio.sleep(1)
        calls = len(world.calls)
        await asyncio.sleep(10_000)
        assert len(world.calls) == calls


@in_leaping_time
async def test_a_deleted_job_is_forgotten_even_if_no_watch_has_seen_it_go() -> None:
    world = World()
    async with world.operated() as controller:
        await world.a_job_starts()
        world.cluster.delete("BatchInference", "job", unseen=True)
        world.cluster.delete("RayJob", "job-1", unseen=True)
        await asyncio.sleep(REST_SECONDS + 100)
        assert controller.cache.observe((NAMESPACE, "job")) is None
        calls = len(world.calls)
        await asyncio.sleep(10_000)
        assert len(world.calls) == calls


@pytest.mark.parametrize("unseen", [False, True], ids=["seen", "unseen"])
@in_leaping_time
async def test_a_job_whose_ray_job_is_deleted_fails(unseen: bool) -> None:
    world = World()
    async with world.operated():
        await world.a_job_starts()
        began = clock()
        world.cluster.delete("RayJob", "job-1", unseen=unseen)
        await until(world.over, 2 * REST_SECONDS)
        assert clock() - began < (REST_SECONDS + 60 if unseen else 2)
        await asyncio.sleep(1000)
    assert (world.phase(), world.reason()) == ("Failed", "RayJobDeleted")
    assert world.count("create RayJob") == 1


@pytest.mark.parametrize("lag", LAGS, ids=str)
@in_leaping_time
async def test_a_ray_job_is_not_taken_for_deleted_because_the_watch_is_late(
    lag: dict[str, float],
) -> None:
    world = World()
    async with world.operated(lag=lag):
        world.cluster.apply()
        await asyncio.sleep(100)
    assert world.phase() == "Starting"
    assert world.phases == ["Starting"]


@in_leaping_time
async def test_a_job_completes_though_no_event_of_its_ray_job_ever_comes() -> None:
    world = World()
    async with world.operated(lag={"RayJob": 1e9}):
        await world.a_job_ends()
    assert world.phase() == "Succeeded"


@in_leaping_time
async def test_a_job_that_is_created_anew_waits_for_its_former_selfs_ray_job() -> None:
    world = World()
    former = ray_job_body(owner_uid=OTHER_UID, **RUNNING)
    world.cluster.put(former)
    async with world.operated():
        world.cluster.apply()
        await until(lambda: world.reason() == "NameTaken")
        await asyncio.sleep(100)
        assert world.driver.asked == []
        world.cluster.delete("RayJob", "job-1")
        await until(lambda: world.phase() == "Starting")
    found = world.cluster.objects["RayJob", "job-1"]
    assert found["metadata"]["ownerReferences"][0]["uid"] != OTHER_UID


@in_leaping_time
async def test_a_ray_job_that_no_watch_shows_is_in_the_way_all_the_same() -> None:
    world = World()
    foreign = ray_job_body(owner_uid=None)
    foreign["metadata"]["labels"] = {}
    world.cluster.put(foreign)
    async with world.operated():
        world.cluster.apply()
        await until(lambda: world.reason() == "NameTaken")
        world.cluster.delete("RayJob", "job-1")
        await until(lambda: world.phase() == "Starting")


@in_leaping_time
async def test_a_job_that_is_being_deleted_gets_no_new_ray_job() -> None:
    """Foreground deletion takes the RayJob first, while the job itself is still there."""
    world = World()
    async with world.operated():
        await world.a_job_starts()
        status = world.cluster.status()
        going = {"metadata": {"deletionTimestamp": "2026-03-01T12:30:00Z"}}
        world.cluster.change("BatchInference", "job", going)
        world.cluster.delete("RayJob", "job-1")
        await asyncio.sleep(1000)
    assert world.cluster.get("RayJob", "job-1") is None
    assert world.cluster.status() == status


@in_leaping_time
async def test_a_pod_that_goes_unheard_costs_nothing_after_a_while() -> None:
    world = World()
    async with world.operated():
        world.cluster.apply()
        await world.kuberay().start()
        world.cluster.put(pod_body("worker", gpus=1, **placed(stamp(wall_clock()))))
        await asyncio.sleep(1000)
        world.cluster.delete("Pod", "worker", unseen=True)
        await asyncio.sleep(10_000)
    assert 1000 <= world.cluster.status()["gpuSeconds"] <= 1000 + 2 * DOUBT_SECONDS
    assert world.count("list Pods") <= 1000 / DOUBT_SECONDS + 1
