"""What no watch tells is found by looking through all jobs from time to time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from batchinference_operator.runtime.controller import Controller
from batchinference_operator.runtime.gateway import Refused, Unreachable
from batchinference_operator.runtime.resync import RESYNC_SECONDS, resync
from support.operator.harness import Harness
from support.operator.objects import NAMESPACE
from support.operator.virtual_time import in_virtual_time, until

KEY = (NAMESPACE, "job")


@asynccontextmanager
async def resynced(harness: Harness) -> AsyncIterator[Controller]:
    async with harness.operator() as controller:
        task = asyncio.create_task(resync(controller, []))
        yield controller
        task.cancel()


@in_virtual_time
async def test_a_job_that_was_deleted_unseen_is_forgotten() -> None:
    harness = Harness()
    async with resynced(harness) as controller:
        await harness.finish_job()
        harness.cluster.delete("BatchInference", "job", unseen=True)
        await asyncio.sleep(RESYNC_SECONDS + 1)
        assert controller.cache.observe(KEY) is None
        assert controller.written == {}


@in_virtual_time
async def test_jobs_that_are_there_stay_known() -> None:
    harness = Harness()
    async with resynced(harness) as controller:
        await harness.finish_job()
        harness.cluster.apply("other")
        await asyncio.sleep(3 * RESYNC_SECONDS)
        assert set(controller.cache.uids()) == {KEY, (NAMESPACE, "other")}


@in_virtual_time
async def test_one_that_was_created_anew_under_the_name_stays() -> None:
    harness = Harness()
    async with resynced(harness) as controller:
        await harness.finish_job()
        harness.cluster.delete("BatchInference", "job", unseen=True)
        harness.cluster.delete("RayJob", "job-1")
        harness.cluster.apply()
        await asyncio.sleep(RESYNC_SECONDS + 1)
        assert controller.cache.observe(KEY) is not None


@in_virtual_time
async def test_jobs_without_events_are_requeued_by_resync() -> None:
    harness = Harness()
    harness.cluster.apply(suspend=True)
    async with resynced(harness) as controller:
        await until(lambda: harness.phase() == "Suspended")
        looks = controller.signals.metrics.registry
        before = looks.get_sample_value("batchinference_reconcile_seconds_count")
        await asyncio.sleep(2 * RESYNC_SECONDS + 1)
        after = looks.get_sample_value("batchinference_reconcile_seconds_count")
        assert before is not None
        assert after == before + 2


@pytest.mark.parametrize("fault", [Refused("403: forbidden"), Unreachable("reset")], ids=repr)
@in_virtual_time
async def test_a_list_that_fails_is_asked_for_again(fault: Exception) -> None:
    harness = Harness()
    faults = [fault]

    def fail(call: str) -> None:
        if call == "list BatchInference" and faults:
            raise faults.pop()

    harness.gateway.before = fail
    async with resynced(harness) as controller:
        await harness.finish_job()
        harness.cluster.delete("BatchInference", "job", unseen=True)
        await asyncio.sleep(2 * RESYNC_SECONDS + 1)
        assert controller.cache.observe(KEY) is None
