"""Jobs whose RayJob was created by an operator that stopped before it wrote the status."""

from __future__ import annotations

import asyncio
from typing import Any

from batchinference.spec.report import JobState
from batchinference_operator.controller.driver_poller import Answer
from support.operator.harness import Harness
from support.operator.objects import FAILED, RUNNING, SUCCEEDED, ray_job_body, report
from support.operator.virtual_time import BEGINNING, in_virtual_time, until

CREATED = BEGINNING.isoformat()
ENDED = {"startTime": CREATED, "endTime": "2026-03-01T12:01:00Z"}
AWAY = 600
"""Seconds without an operator, far more than any grace period."""


def find_unadopted(state: JobState, ray_job: dict[str, Any], **fields: Any) -> Harness:
    """Return a harness with a job that has an empty status, a RayJob and a driver that answers."""
    harness = Harness()
    harness.cluster.apply()
    harness.cluster.put(ray_job_body(**{"startTime": CREATED, **ray_job}))
    harness.driver.answers["job-1"] = Answer(reached=True, report=report(state, **fields))
    return harness


@in_virtual_time
async def test_answering_driver_is_not_reported_unreachable_after_restart() -> None:
    harness = find_unadopted(JobState.RUNNING, RUNNING, rows=40, total=100)
    await asyncio.sleep(AWAY)
    async with harness.operator():
        await until(lambda: harness.phase() == "Running", 5)
    reasons = {one["conditions"][0]["reason"] for _, one in harness.cluster.history}
    assert reasons == {"Planning", "Starting", "Running"}


@in_virtual_time
async def test_unrecorded_failure_gives_the_cause() -> None:
    cause = {"reason": "Incomplete", "message": "rows 3 to 5 are missing"}
    harness = find_unadopted(JobState.FAILED, {**FAILED, **ENDED}, **cause)
    await asyncio.sleep(AWAY)
    async with harness.operator():
        await until(lambda: harness.phase() == "Retrying", 5)
    assert harness.cluster.status()["attempts"][0]["cause"] == "Incomplete"


@in_virtual_time
async def test_unrecorded_success_wins_over_suspension() -> None:
    harness = find_unadopted(JobState.SUCCEEDED, {**SUCCEEDED, **ENDED}, rows=100, total=100)
    harness.cluster.patch("BatchInference", "job", {"spec": {"suspend": True}})
    await asyncio.sleep(AWAY)
    async with harness.operator():
        await until(harness.is_finished, 5)
    assert (harness.phase(), harness.cluster.status()["progress"]["rows"]) == ("Succeeded", 100)


@in_virtual_time
async def test_unrecorded_running_attempt_can_be_suspended() -> None:
    harness = find_unadopted(JobState.RUNNING, RUNNING, rows=40, total=100)
    harness.cluster.patch("BatchInference", "job", {"spec": {"suspend": True}})
    async with harness.operator():
        await until(lambda: harness.phase() == "Suspended", 60)
    (attempt,) = harness.cluster.status()["attempts"]
    assert attempt["outcome"] == "Suspended"
