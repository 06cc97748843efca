"""The resync of all jobs finds changes that the watches missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from batchinference_operator.controller.background import RESYNC_SECONDS, resync
from batchinference_operator.controller.job_controller import JobController
from batchinference_operator.kube.errors import Refused, Unreachable
from support.operator.harness import Harness
from support.operator.objects import NAMESPACE
from support.operator.virtual_time import in_virtual_time

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
