"""The loop when the API server refuses, fails or is late, and when a driver falls silent."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.beginning import AWAY_SECONDS, NOT_MADE
from batchinference_operator.reconcile.turns import Concurrency
from batchinference_operator.runtime.driver import Answer
from batchinference_operator.runtime.gateway import Conflict, Refused, Unreachable
from support.fake_cluster import MemoryGateway, operated
from support.operator_objects import SETTINGS, placed, pod_body, report, waiting
from support.virtual_time import clock, in_leaping_time, until
from support.world import World

TIMED_OUT = Unreachable('500: failed calling webhook "v.ray.io": context deadline exceeded')


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
            raise Unreachable("connection reset")

    world.gateway.before = fail
    async with world.operated():
        world.cluster.apply()
        await until(lambda: world.cluster.get("RayJob", "job-1"))
    times = [when for when, call in world.calls if call == "create ConfigMap"]
    assert times[:6] == [0, 0.5, 1.5, 3.5, 7.5, 15.5]


@in_leaping_time
async def test_an_api_server_that_is_away_is_one_line_a_look_and_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.fails("create ConfigMap", Unreachable("Cannot connect to host 10.0.0.1:443"))
    async with world.recorded() as metrics:
        world.cluster.apply()
        await asyncio.sleep(10)
    looks = world.count("create ConfigMap")
    kinds = {"unreachable": looks, "error": None, "refused": None}
    assert looks > 3
    for kind, count in kinds.items():
        name = "batchinference_reconcile_errors_total"
        assert metrics.registry.get_sample_value(name, {"kind": kind}) == count
    told = [record for record in caplog.records if record.levelno > logging.INFO]
    assert [record.levelname for record in told] == ["WARNING"] * looks
    assert all(record.exc_info is None for record in told)
    assert "the API server is away: Cannot connect to host 10.0.0.1:443" in told[0].message


@in_leaping_time
async def test_after_a_success_the_next_failure_is_tried_again_soon() -> None:
    world = World()

    def fail(call: str) -> None:
        world.called(call)
        if world.count("create ConfigMap") <= 5 or (call == "release" and world.count(call) == 1):
            raise Unreachable("connection reset")

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
                raise RuntimeError("a bug")
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


@pytest.mark.parametrize("kind", ["ConfigMap", "RayJob", "Secret"])
@in_leaping_time
async def test_an_api_server_that_is_away_for_a_moment_is_no_news_of_the_job(kind: str) -> None:
    world = World()

    def fail(call: str) -> None:
        world.called(call)
        if call == f"create {kind}" and clock() < AWAY_SECONDS / 2:
            raise TIMED_OUT

    world.gateway.before = fail
    async with world.recorded():
        await world.a_job_ends()
    assert world.phase() == "Succeeded"
    reasons = {one["conditions"][0]["reason"] for one in world.cluster.history}
    assert reasons.isdisjoint(NOT_MADE)
    told = [event["reason"] for event in world.cluster.events.values()]
    assert told == ["AttemptStarted", "Succeeded"]


@pytest.mark.parametrize("limit", [None, 1], ids=["any", "one-at-a-time"])
@in_leaping_time
async def test_an_api_server_that_stays_away_is_told_in_words_that_say_so(
    limit: int | None,
) -> None:
    world, away = World(), True

    def fail(call: str) -> None:
        world.called(call)
        if call == "create RayJob" and away:
            raise TIMED_OUT

    world.gateway.before = fail
    settings = replace(SETTINGS, concurrency=Concurrency(in_all=limit))
    async with world.operated(settings=settings):
        world.cluster.apply()
        await until(lambda: world.reason() == "ApiServerAway")
        assert AWAY_SECONDS <= clock() <= 2.5 * AWAY_SECONDS
        assert world.phase() == "Pending"
        message = world.cluster.status()["conditions"][0]["message"]
        assert message.startswith("the API server has not made the job's objects")
        assert "context deadline exceeded" in message
        away = False
        await world.its_run_ends()
    assert world.phase() == "Succeeded"


@in_leaping_time
async def test_each_absence_of_the_api_server_has_its_own_minute() -> None:
    world, back = World(), AWAY_SECONDS / 2

    def fail(call: str) -> None:
        if call == "create RayJob" and clock() < back:
            raise TIMED_OUT

    world.gateway.before = fail
    async with world.operated():
        world.cluster.apply(
            retry={"onCause": {"Application": "retry"}, "backoff": {"initial": "0s"}}
        )
        await until(lambda: world.cluster.get("RayJob", "job-1"))
        back = clock() + 2 * AWAY_SECONDS
        await world.kuberay().run(JobState.FAILED)
        await until(lambda: world.cluster.get("RayJob", "job-2"))
    assert clock() >= back
    reasons = {one["conditions"][0]["reason"] for one in world.cluster.history}
    assert "ApiServerAway" not in reasons


@in_leaping_time
async def test_a_refused_token_keeps_no_deadline_from_the_job() -> None:
    world = World()
    world.fails("create Secret", Refused("403: exceeded quota: secrets"))
    async with world.operated():
        world.cluster.apply(deadlines={"pending": "10m"})
        await until(lambda: world.reason() == "Refused")
        await until(world.over, 700)
        assert (world.phase(), world.reason()) == ("Failed", "DeadlineExceeded")
        await until(lambda: world.cluster.get("RayJob", "job-1") is None)


UNTOLD = [
    Refused("403: events is forbidden"),
    Conflict("try again"),
    Unreachable("no answer"),
]


@pytest.mark.parametrize("fault", UNTOLD, ids=repr)
@in_leaping_time
async def test_words_that_cannot_be_read_keep_nothing_from_a_job(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.fails("get Events", fault)
    async with world.operated():
        await world.a_job_starts()
        for number in range(3):
            body = pod_body(f"job-1-{number}", **placed(), **waiting("ContainerCreating"))
            world.cluster.put(body)
        await asyncio.sleep(600)
        world.cluster.change("BatchInference", "job", {"spec": {"suspend": True}})
        await until(lambda: world.phase() == "Suspended", 30)
    told = [record.message for record in caplog.records if record.levelno > logging.INFO]
    assert len(told) == 1, "once, however often"
    assert "Events cannot be read" in told[0]


@in_leaping_time
async def test_one_pod_whose_words_cannot_be_read_stands_for_all() -> None:
    world = World()
    world.fails("get Events", Unreachable("no answer"))
    async with world.operated():
        await world.a_job_starts()
        before = len(world.calls)
        for number in range(3):
            body = pod_body(f"job-1-{number}", **placed(), **waiting("ContainerCreating"))
            world.cluster.put(body)
        await asyncio.sleep(1)
    assert [call for _, call in world.calls[before:]].count("get Events") == 1


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
