"""The loop when the API server refuses, fails or is late, and when a driver falls silent."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from batchinference.spec.report import JobState
from batchinference_operator.runtime.driver import Answer
from batchinference_operator.runtime.gateway import Refused
from support.fake_cluster import MemoryGateway, operated
from support.operator_objects import (
    report,
)
from support.virtual_time import clock, in_leaping_time, until
from support.world import World


@in_leaping_time
async def test_a_job_that_was_changed_meanwhile_is_looked_at_again() -> None:
    world = World()

    def change_it(call: str) -> None:
        world.called(call)
        if call == "patch status" and world.count(call) == 1:
            world.cluster.change("BatchInference", "job", {"metadata": {"labels": {"a": "b"}}})

    world.gateway.before = change_it
    async with world.operated(lag={"BatchInference": 60, "RayJob": 60}):
        world.cluster.apply()
        await until(world.phase)
    news = 120  # when the watch shows the change
    tries = [when for when, call in world.calls if call == "patch status" and when < news]
    assert len(tries) > 1, "it does not count on the watch"


@in_leaping_time
async def test_a_conflict_is_nothing_to_complain_of(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    async with world.operated(lag={"BatchInference": 30}):
        await world.a_job_ends()
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@in_leaping_time
async def test_a_failing_api_server_is_tried_again_ever_less_often() -> None:
    world = World()

    def fail(call: str) -> None:
        world.called(call)
        if world.count("create ConfigMap") <= 5:
            raise OSError("connection reset")

    world.gateway.before = fail
    async with world.operated():
        world.cluster.apply()
        await until(lambda: world.cluster.get("RayJob", "job-1"))
    times = [when for when, call in world.calls if call == "create ConfigMap"]
    assert times[:6] == [0, 0.5, 1.5, 3.5, 7.5, 15.5]


@in_leaping_time
async def test_after_a_success_the_next_failure_is_tried_again_soon() -> None:
    world = World()

    def fail(call: str) -> None:
        world.called(call)
        if world.count("create ConfigMap") <= 5 or (call == "release" and world.count(call) == 1):
            raise OSError("connection reset")

    world.gateway.before = fail
    async with world.operated():
        world.cluster.apply()
        await world.kuberay().run()
        await until(lambda: world.count("release") == 2)
    first, second = (when for when, call in world.calls if call == "release")
    assert second - first == 0.5


@in_leaping_time
async def test_a_job_that_cannot_be_started_does_not_hold_up_another() -> None:
    world = World()

    class Picky(MemoryGateway):
        async def create(self, body: dict[str, Any]) -> None:
            if body["metadata"]["name"].startswith("bad"):
                raise OSError("connection reset")
            await super().create(body)

    async with operated(Picky(world.cluster), world.driver, workers=1):
        world.cluster.apply("bad")
        world.cluster.apply("good")
        await world.kuberay("good").run()
        await until(lambda: world.over("good"))
    assert world.cluster.status("bad") == {}


@in_leaping_time
async def test_a_refusal_stands_in_the_status_until_the_objects_are_taken() -> None:
    world = World()
    full = True

    def refuse(call: str) -> None:
        world.called(call)
        if call == "create RayJob" and full:
            raise Refused("403: exceeded quota")

    world.gateway.before = refuse
    async with world.operated():
        world.cluster.apply()
        await until(lambda: world.reason() == "Refused")
        assert world.phase() == "Pending"
        assert world.cluster.status()["conditions"][0]["message"] == "403: exceeded quota"
        await asyncio.sleep(300)
        assert world.count("patch status") == 1
        assert 5 < world.count("create RayJob") < 15, "again and again, but not in a hurry"
        full = False
        await world.its_run_ends()
    assert world.phase() == "Succeeded"


@in_leaping_time
async def test_a_worker_outlives_any_error() -> None:
    world = World()
    broken = True

    def fail(call: str) -> None:
        if broken:
            raise RuntimeError("a bug")

    world.gateway.before = fail
    async with world.operated(workers=1) as controller:
        world.cluster.apply()
        await asyncio.sleep(100)
        broken = False
        await world.its_run_ends()
        assert len(controller.queue) == 0


@in_leaping_time
async def test_a_driver_that_falls_silent_sets_nothing_back() -> None:
    world = World()
    async with world.operated():
        kuberay = await world.a_job_runs()
        await kuberay.tell(Answer(reached=True, report=report(rows=40)))
        await kuberay.tell(Answer(reached=False))
        assert (world.phase(), world.reason()) == ("Running", "DriverSilent")
        await kuberay.tell(Answer(reached=True, report=report(JobState.PREPARING)))
        await kuberay.tell(Answer(reached=True, report=report(rows=10)))
        assert (world.phase(), world.reason()) == ("Running", "Running")
        assert world.cluster.status()["progress"] == {"rows": 40}


@in_leaping_time
async def test_a_job_ends_without_its_report_when_nobody_answers_for_a_minute() -> None:
    world = World()
    async with world.operated():
        kuberay = await world.a_job_runs()
        end = {"endTime": "2026-03-01T12:00:30Z"}
        began = clock()
        await kuberay.step(jobStatus="SUCCEEDED", jobDeploymentStatus="Complete", **end)
        assert world.phase() == "Finalizing"
        await until(world.over)
        assert 60 <= clock() - began <= 90
    assert world.phase() == "Succeeded"
    assert "could not be read" in world.cluster.status()["conditions"][0]["message"]
