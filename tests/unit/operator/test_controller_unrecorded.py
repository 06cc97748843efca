"""A RayJob was made, and the operator ended before the status said so: the next one asks the driver
before it says anything."""

from __future__ import annotations

import asyncio
from typing import Any

from batchinference.spec.report import JobState
from batchinference_operator.runtime.driver import Answer
from support.operator_objects import FAILED, RUNNING, SUCCEEDED, ray_job_body, report
from support.virtual_time import BEGINNING, in_leaping_time, until
from support.world import World

CREATED = BEGINNING.isoformat()
ENDED = {"startTime": CREATED, "endTime": "2026-03-01T12:01:00Z"}
LONG = 600
"""Seconds for which the operator is away: far more than any grace."""


def left(state: JobState, ray_job: dict[str, Any], **told: Any) -> World:
    """A job whose status says nothing, and what its driver answers."""
    world = World()
    world.cluster.apply()
    world.cluster.put(ray_job_body(**{"startTime": CREATED, **ray_job}))
    world.driver.answers["job-1"] = Answer(reached=True, report=report(state, **told))
    return world


@in_leaping_time
async def test_a_driver_that_answers_is_never_called_silent() -> None:
    world = left(JobState.RUNNING, RUNNING, rows=40, total=100)
    await asyncio.sleep(LONG)
    async with world.operated():
        await until(lambda: world.phase() == "Running", 5)
    reasons = {one["conditions"][0]["reason"] for one in world.cluster.history}
    assert reasons == {"Planning", "Running"}


@in_leaping_time
async def test_a_driver_that_has_failed_meanwhile_gives_the_cause() -> None:
    told = {"reason": "Incomplete", "message": "rows 3 to 5 are missing"}
    world = left(JobState.FAILED, {**FAILED, **ENDED}, **told)
    await asyncio.sleep(LONG)
    async with world.operated():
        await until(lambda: world.phase() == "Retrying", 5)
    assert world.cluster.status()["attempts"][0]["cause"] == "Incomplete"


@in_leaping_time
async def test_a_success_meanwhile_counts_though_the_job_is_to_be_suspended() -> None:
    world = left(JobState.SUCCEEDED, {**SUCCEEDED, **ENDED}, rows=100, total=100)
    world.cluster.change("BatchInference", "job", {"spec": {"suspend": True}})
    await asyncio.sleep(LONG)
    async with world.operated():
        await until(world.over, 5)
    assert (world.phase(), world.cluster.status()["progress"]["rows"]) == ("Succeeded", 100)


@in_leaping_time
async def test_one_that_runs_and_is_to_be_suspended_is_an_attempt_that_was_suspended() -> None:
    world = left(JobState.RUNNING, RUNNING, rows=40, total=100)
    world.cluster.change("BatchInference", "job", {"spec": {"suspend": True}})
    async with world.operated():
        await until(lambda: world.phase() == "Suspended", 60)
    (attempt,) = world.cluster.status()["attempts"]
    assert attempt["outcome"] == "Suspended"
