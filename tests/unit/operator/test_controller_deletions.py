"""The reconcile loop when users delete jobs and RayJobs, and create them again."""

from __future__ import annotations

import asyncio

import pytest

from batchinference_operator.controller.pod_cache import STALE_SECONDS
from batchinference_operator.reconcile.requeue import WATCHED_SECONDS
from batchinference_operator.status.timestamps import to_rfc3339
from support.operator.harness import LAGS, Harness
from support.operator.objects import (
    NAMESPACE,
    asking,
    owner,
    placed,
    pod_body,
)
from support.operator.virtual_time import clock, in_virtual_time, until, wall_clock


@pytest.mark.parametrize("unseen", [False, True], ids=["seen", "unseen"])
@in_virtual_time
async def test_deleted_job_is_forgotten(harness: Harness, unseen: bool) -> None:
    async with harness.operator() as controller:
        await harness.start_job()
        harness.cluster.delete("BatchInference", "job", unseen=unseen)
        harness.cluster.delete("RayJob", "job-1", unseen=unseen)
        await asyncio.sleep(WATCHED_SECONDS + 100 if unseen else 1)
        assert controller.cache.observe((NAMESPACE, "job")) is None
        calls = len(harness.calls)
        await asyncio.sleep(10_000)
        assert len(harness.calls) == calls


@pytest.mark.parametrize("unseen", [False, True], ids=["seen", "unseen"])
@in_virtual_time
async def test_deleted_ray_job_fails_the_job(harness: Harness, unseen: bool) -> None:
    async with harness.operator():
        await harness.start_job()
        began = clock()
        harness.cluster.delete("RayJob", "job-1", unseen=unseen)
        await until(harness.is_finished, 2 * WATCHED_SECONDS)
        assert clock() - began < (WATCHED_SECONDS + 60 if unseen else 2)
        await asyncio.sleep(1000)
    assert (harness.phase(), harness.reason()) == ("Failed", "RayJobDeleted")
    assert harness.count("create RayJob") == 1


@pytest.mark.parametrize("lag", LAGS, ids=str)
@in_virtual_time
async def test_late_watch_does_not_mean_a_deleted_ray_job(
    harness: Harness, lag: dict[str, float]
) -> None:
    async with harness.operator(lag=lag):
        harness.cluster.apply()
        await asyncio.sleep(100)
    assert harness.phase() == "Starting"
    assert harness.phases == ["Starting"]


@in_virtual_time
async def test_job_completes_without_any_event_of_its_ray_job(harness: Harness) -> None:
    async with harness.operator(lag={"RayJob": 1e9}):
        await harness.finish_job()
    assert harness.phase() == "Succeeded"


@in_virtual_time
async def test_pod_deleted_without_an_event_is_no_longer_charged(harness: Harness) -> None:
    async with harness.operator():
        harness.cluster.apply()
        await harness.ray_job().start()
        worker = pod_body("worker", **placed(to_rfc3339(wall_clock())))
        harness.cluster.put({**worker, "spec": asking("1")})
        await asyncio.sleep(1000)
        harness.cluster.delete("Pod", "worker", unseen=True)
        await asyncio.sleep(10_000)
    assert 1000 <= harness.cluster.status()["cpuSeconds"] <= 1000 + 2 * STALE_SECONDS
    assert harness.count("list Pods") <= 1000 / STALE_SECONDS + 1


@in_virtual_time
async def test_cluster_of_a_deleted_job_is_removed_while_kuberay_is_down(harness: Harness) -> None:
    harness.cluster.finalizers_hold = True
    async with harness.operator():
        await harness.start_job()
        await harness.ray_job().start()
        uid = harness.cluster.objects["RayJob", "job-1"]["metadata"]["uid"]
        metadata = {"name": "job-1-cluster", "ownerReferences": [owner(uid, "RayJob")]}
        harness.cluster.put({"kind": "RayCluster", "metadata": metadata})
        harness.cluster.delete("BatchInference", "job")
        harness.cluster.collect_garbage()
        await asyncio.sleep(3 * STALE_SECONDS)
        assert harness.cluster.get("RayCluster", "job-1-cluster") is None
        harness.cluster.finalize("RayJob")
        harness.calls.clear()
        await asyncio.sleep(3 * STALE_SECONDS)
        assert harness.calls == []
