"""The reconcile loop when users delete jobs and RayJobs, and create them again. A resync finds what
the watches have missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from batchinference.spec.report import JobState
from batchinference_operator.controller.job_controller import JobController
from batchinference_operator.controller.missed_deletions import RESYNC_SECONDS, resync
from batchinference_operator.kube.api_errors import Refused, Unreachable
from batchinference_operator.reconcile.admission_queue import Concurrency
from batchinference_operator.reconcile.observed_and_actions import DriverAnswer
from batchinference_operator.reconcile.ray_job_deletion import ORPHAN_SECONDS
from batchinference_operator.reconcile.requeue import POLL_SECONDS
from batchinference_operator.reconcile.status_write_delay import WRITE_SECONDS
from batchinference_operator.status.timestamps import to_rfc3339
from plugins.messages import Messages
from support.operator.harness import Harness
from support.operator.objects import CONFIG, NAMESPACE, UID, owner, ray_job_body, report
from support.operator.virtual_time import BEGINNING, in_virtual_time, until


@pytest.mark.parametrize("unseen", [False, True], ids=["seen", "unseen"])
@in_virtual_time
async def test_deleted_job_is_forgotten(harness: Harness, unseen: bool) -> None:
    async with harness.operator() as controller:
        await harness.start_job()
        harness.cluster.delete("BatchInference", "job", unseen=unseen)
        harness.cluster.delete("RayJob", "job-1")
        await asyncio.sleep(1)
        assert controller.cache.observe((NAMESPACE, "job")) is None
        calls = len(harness.calls)
        await asyncio.sleep(10_000)
        assert len(harness.calls) == calls


@in_virtual_time
async def test_job_whose_driver_reports_the_deletion_first_is_not_retried(harness: Harness) -> None:
    harness.cluster.finalizers_hold = True
    async with harness.operator(lag={"RayJob": 30}):
        kuberay = await harness.run_job()
        await asyncio.sleep(30)
        harness.cluster.delete("RayJob", "job-1", foreground=True)
        last = report(JobState.FAILED, reason="Interrupted", message="SIGTERM")
        await kuberay.answer(DriverAnswer(reached=True, report=last))
        assert (harness.phase(), harness.reason()) == ("Failed", "RayJobDeleted")


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
    async with harness.operator() as controller:  # a restart, before the RayJobs are listed
        controller.is_listed = lambda _: False
        await asyncio.sleep(1)
        controller.is_listed = lambda _: True
        controller.requeue_waiting_for_list("")
        await asyncio.sleep(3 * ORPHAN_SECONDS)
        assert harness.cluster.get("RayCluster", "job-1-cluster") is None
        harness.cluster.finalize("RayJob")
        harness.calls.clear()
        await asyncio.sleep(3 * ORPHAN_SECONDS)
        assert harness.calls == []


@in_virtual_time
async def test_cluster_of_a_deleted_job_is_removed_on_time_after_a_restart(
    harness: Harness,
) -> None:
    harness.cluster.finalizers_hold = True
    async with harness.operator():
        await harness.start_job()
        await harness.ray_job().start()
        harness.cluster.delete("BatchInference", "job")
        harness.cluster.collect_garbage()
        await asyncio.sleep(ORPHAN_SECONDS - 60)
    async with harness.operator():
        await asyncio.sleep(62)
        assert harness.count("remove RayJob") == 1


@pytest.mark.parametrize("owners", [[], [owner("w", kind="Workflow")]], ids=["orphan", "adopted"])
@in_virtual_time
async def test_ray_job_of_a_job_that_was_deleted_without_it_is_kept(
    harness: Harness, owners: list[dict[str, Any]]
) -> None:
    async with harness.operator():
        await harness.run_job()
        harness.cluster.patch("RayJob", "job-1", {"metadata": {"ownerReferences": owners}})
        harness.cluster.delete("BatchInference", "job")
        await asyncio.sleep(3 * ORPHAN_SECONDS)
        assert harness.count("remove RayJob") == 0


@pytest.mark.parametrize("limited", [True, False], ids=["limit", "no-limit"])
@in_virtual_time
async def test_job_starts_when_the_orphan_with_its_name_is_deleted(
    harness: Harness, messages: Messages, *, limited: bool
) -> None:
    harness.cluster.finalizers_hold = True
    concurrency = Concurrency(total=1 if limited else None)
    async with harness.operator(config=replace(CONFIG, concurrency=concurrency)):
        await harness.start_job()
        await harness.ray_job().start()
        harness.cluster.patch("RayJob", "job-1", {"metadata": {"ownerReferences": []}})
        harness.cluster.delete("BatchInference", "job")
        await asyncio.sleep(1)
        harness.cluster.apply()
        await until(lambda: harness.reason() == "NameTaken")
        messages.check(harness.message())
        harness.cluster.delete("RayJob", "job-1")
        await asyncio.sleep(WRITE_SECONDS + POLL_SECONDS)
        messages.check(harness.message())
        harness.cluster.finalize("RayJob")
        await until(lambda: harness.phase() == "Starting", 5)


@in_virtual_time
async def test_refused_deletion_of_a_cluster_is_repeated_less_and_less_often(
    harness: Harness,
) -> None:
    harness.cluster.finalizers_hold = True
    harness.fail_call("remove RayJob", Refused("403"))
    async with harness.operator():
        await harness.start_job()
        await harness.ray_job().start()
        harness.cluster.delete("BatchInference", "job")
        harness.cluster.collect_garbage()
        await asyncio.sleep(2 * ORPHAN_SECONDS)
        assert 5 < harness.count("remove RayJob") < 20


@pytest.mark.parametrize(("owner_uid", "removed"), [(UID, 1), (None, 0)], ids=["owned", "foreign"])
@in_virtual_time
async def test_ray_job_of_another_application_is_never_deleted(
    harness: Harness, owner_uid: str | None, removed: int
) -> None:
    """Anybody may use the label of a job that is gone."""
    body = ray_job_body("job-1", owner_uid=owner_uid)
    long_ago = to_rfc3339(BEGINNING - timedelta(seconds=ORPHAN_SECONDS + 1))
    body["metadata"] |= {"deletionTimestamp": long_ago, "finalizers": ["ray.io/rayjob-finalizer"]}
    async with harness.operator():
        harness.cluster.put(body)
        await asyncio.sleep(1)
    assert harness.count("remove RayJob") == removed


KEY = (NAMESPACE, "job")


@asynccontextmanager
async def resynced(harness: Harness) -> AsyncIterator[JobController]:
    async with harness.operator() as controller:
        task = asyncio.create_task(resync(controller, []))
        yield controller
        task.cancel()


@pytest.mark.parametrize("fault", [None, Refused("403: forbidden"), Unreachable("reset")], ids=repr)
@in_virtual_time
async def test_job_deleted_without_an_event_is_forgotten_despite_a_failed_list(
    harness: Harness, fault: Exception | None
) -> None:
    faults = [fault] if fault else []

    def fail(call: str) -> None:
        if call == "list BatchInference" and faults:
            raise faults.pop()

    harness.api.before = fail
    async with resynced(harness) as controller:
        await harness.finish_job()
        harness.cluster.delete("BatchInference", "job", unseen=True)
        await asyncio.sleep((2 if fault else 1) * RESYNC_SECONDS + 1)
        assert controller.cache.observe(KEY) is None
        assert controller.last_write == {}


@in_virtual_time
async def test_existing_jobs_are_kept(harness: Harness) -> None:
    async with resynced(harness) as controller:
        await harness.finish_job()
        harness.cluster.apply("other")
        await asyncio.sleep(3 * RESYNC_SECONDS)
        assert set(controller.cache.uids()) == {KEY, (NAMESPACE, "other")}


@in_virtual_time
async def test_recreated_job_is_kept(harness: Harness) -> None:
    async with resynced(harness) as controller:
        await harness.finish_job()
        harness.cluster.delete("BatchInference", "job", unseen=True)
        harness.cluster.delete("RayJob", "job-1")
        harness.cluster.apply()
        await asyncio.sleep(RESYNC_SECONDS + 1)
        assert controller.cache.observe(KEY) is not None
