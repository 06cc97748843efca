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
from support.operator.fake_cluster import FakeGateway
from support.operator.harness import Harness, running_operator
from support.operator.objects import SETTINGS, placed, pod_body, report, waiting
from support.operator.virtual_time import clock, in_virtual_time, until

TIMED_OUT = Unreachable('500: failed calling webhook "v.ray.io": context deadline exceeded')


@in_virtual_time
async def test_conflict_requeues_the_job() -> None:
    harness = Harness()

    def change_it(call: str) -> None:
        harness.record(call)
        if call == "patch status" and harness.count(call) == 1:
            harness.cluster.patch("BatchInference", "job", {"metadata": {"labels": {"a": "b"}}})

    harness.gateway.before = change_it
    async with harness.operator(lag={"BatchInference": 60, "RayJob": 60}):
        harness.cluster.apply()
        await until(harness.phase)
    news = 120  # when the watch shows the change
    tries = [when for when, call in harness.calls if call == "patch status" and when < news]
    assert len(tries) > 1, "it does not count on the watch"


@in_virtual_time
async def test_conflict_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    async with harness.operator(lag={"BatchInference": 30}):
        await harness.finish_job()
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@in_virtual_time
async def test_failing_api_server_is_retried_with_backoff() -> None:
    harness = Harness()

    def fail(call: str) -> None:
        harness.record(call)
        if harness.count("create ConfigMap") <= 5:
            raise Unreachable("connection reset")

    harness.gateway.before = fail
    async with harness.operator():
        harness.cluster.apply()
        await until(lambda: harness.cluster.get("RayJob", "job-1"))
    times = [when for when, call in harness.calls if call == "create ConfigMap"]
    assert times[:6] == [0, 0.5, 1.5, 3.5, 7.5, 15.5]


@in_virtual_time
async def test_api_server_outage_logs_one_warning_per_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = Harness()
    harness.fail_call("create ConfigMap", Unreachable("Cannot connect to host 10.0.0.1:443"))
    async with harness.recorded_operator() as metrics:
        harness.cluster.apply()
        await asyncio.sleep(10)
    looks = harness.count("create ConfigMap")
    kinds = {"unreachable": looks, "error": None, "refused": None}
    assert looks > 3
    for kind, count in kinds.items():
        name = "batchinference_reconcile_errors_total"
        assert metrics.registry.get_sample_value(name, {"kind": kind}) == count
    told = [record for record in caplog.records if record.levelno > logging.INFO]
    assert [record.levelname for record in told] == ["WARNING"] * looks
    assert all(record.exc_info is None for record in told)
    assert "the API server is away: Cannot connect to host 10.0.0.1:443" in told[0].message


@in_virtual_time
async def test_success_resets_the_backoff() -> None:
    harness = Harness()

    def fail(call: str) -> None:
        harness.record(call)
        if harness.count("create ConfigMap") <= 5 or (
            call == "release" and harness.count(call) == 1
        ):
            raise Unreachable("connection reset")

    harness.gateway.before = fail
    async with harness.operator():
        harness.cluster.apply()
        await harness.ray_job().run()
        await until(lambda: harness.count("release") == 2)
    first, second = (when for when, call in harness.calls if call == "release")
    assert second - first == 0.5


@in_virtual_time
async def test_a_job_that_cannot_be_started_does_not_hold_up_another() -> None:
    harness = Harness()

    class Picky(FakeGateway):
        async def create(self, body: dict[str, Any]) -> None:
            if body["metadata"]["name"].startswith("bad"):
                raise RuntimeError("a bug")
            await super().create(body)

    async with running_operator(Picky(harness.cluster), harness.driver, workers=1):
        harness.cluster.apply("bad")
        harness.cluster.apply("good")
        await harness.ray_job("good").run()
        await until(lambda: harness.is_finished("good"))
    assert harness.cluster.status("bad") == {}


@in_virtual_time
async def test_refusal_shows_in_status_until_objects_are_created() -> None:
    harness = Harness()
    full = True

    def refuse(call: str) -> None:
        harness.record(call)
        if call == "create RayJob" and full:
            raise Refused("403: exceeded quota")

    harness.gateway.before = refuse
    async with harness.operator():
        harness.cluster.apply()
        await until(lambda: harness.reason() == "Refused")
        assert harness.phase() == "Pending"
        assert harness.cluster.status()["conditions"][0]["message"] == "403: exceeded quota"
        await asyncio.sleep(300)
        assert harness.count("patch status") == 1
        assert 5 < harness.count("create RayJob") < 15, "again and again, but not in a hurry"
        full = False
        await harness.finish_run()
    assert harness.phase() == "Succeeded"


@pytest.mark.parametrize("kind", ["ConfigMap", "RayJob", "Secret"])
@in_virtual_time
async def test_short_api_server_outage_does_not_show_in_status(kind: str) -> None:
    harness = Harness()

    def fail(call: str) -> None:
        harness.record(call)
        if call == f"create {kind}" and clock() < AWAY_SECONDS / 2:
            raise TIMED_OUT

    harness.gateway.before = fail
    async with harness.recorded_operator():
        await harness.finish_job()
    assert harness.phase() == "Succeeded"
    reasons = {one["conditions"][0]["reason"] for one in harness.cluster.history}
    assert reasons.isdisjoint(NOT_MADE)
    told = [event["reason"] for event in harness.cluster.events.values()]
    assert told == ["AttemptStarted", "Succeeded"]


@pytest.mark.parametrize("limit", [None, 1], ids=["any", "one-at-a-time"])
@in_virtual_time
async def test_long_api_server_outage_shows_in_status(
    limit: int | None,
) -> None:
    harness, away = Harness(), True

    def fail(call: str) -> None:
        harness.record(call)
        if call == "create RayJob" and away:
            raise TIMED_OUT

    harness.gateway.before = fail
    settings = replace(SETTINGS, concurrency=Concurrency(in_all=limit))
    async with harness.operator(settings=settings):
        harness.cluster.apply()
        await until(lambda: harness.reason() == "ApiServerAway")
        assert AWAY_SECONDS <= clock() <= 2.5 * AWAY_SECONDS
        assert harness.phase() == "Pending"
        message = harness.cluster.status()["conditions"][0]["message"]
        assert message.startswith("the API server has not made the job's objects")
        assert "context deadline exceeded" in message
        away = False
        await harness.finish_run()
    assert harness.phase() == "Succeeded"


@in_virtual_time
async def test_each_outage_has_its_own_grace_period() -> None:
    harness, back = Harness(), AWAY_SECONDS / 2

    def fail(call: str) -> None:
        if call == "create RayJob" and clock() < back:
            raise TIMED_OUT

    harness.gateway.before = fail
    async with harness.operator():
        harness.cluster.apply(
            retry={"onCause": {"Application": "retry"}, "backoff": {"initial": "0s"}}
        )
        await until(lambda: harness.cluster.get("RayJob", "job-1"))
        back = clock() + 2 * AWAY_SECONDS
        await harness.ray_job().run(JobState.FAILED)
        await until(lambda: harness.cluster.get("RayJob", "job-2"))
    assert clock() >= back
    reasons = {one["conditions"][0]["reason"] for one in harness.cluster.history}
    assert "ApiServerAway" not in reasons


@in_virtual_time
async def test_deadline_applies_while_the_token_is_refused() -> None:
    harness = Harness()
    harness.fail_call("create Secret", Refused("403: exceeded quota: secrets"))
    async with harness.operator():
        harness.cluster.apply(deadlines={"pending": "10m"})
        await until(lambda: harness.reason() == "Refused")
        await until(harness.is_finished, 700)
        assert (harness.phase(), harness.reason()) == ("Failed", "DeadlineExceeded")
        await until(lambda: harness.cluster.get("RayJob", "job-1") is None)


UNTOLD = [
    Refused("403: events is forbidden"),
    Conflict("try again"),
    Unreachable("no answer"),
]


@pytest.mark.parametrize("fault", UNTOLD, ids=repr)
@in_virtual_time
async def test_unreadable_events_do_not_block_a_job(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    harness = Harness()
    harness.fail_call("get Events", fault)
    async with harness.operator():
        await harness.start_job()
        for number in range(3):
            body = pod_body(f"job-1-{number}", **placed(), **waiting("ContainerCreating"))
            harness.cluster.put(body)
        await asyncio.sleep(600)
        harness.cluster.patch("BatchInference", "job", {"spec": {"suspend": True}})
        await until(lambda: harness.cluster.get("RayJob", "job-1") is None, 30)
        for number in range(3):
            harness.cluster.delete("Pod", f"job-1-{number}")
        await until(lambda: harness.phase() == "Suspended", 30)
    told = [record.message for record in caplog.records if record.levelno > logging.INFO]
    assert len(told) == 1, "once, however often"
    assert "Events cannot be read" in told[0]


@in_virtual_time
async def test_failed_event_lookup_is_not_repeated_per_pod() -> None:
    harness = Harness()
    harness.fail_call("get Events", Unreachable("no answer"))
    async with harness.operator():
        await harness.start_job()
        before = len(harness.calls)
        for number in range(3):
            body = pod_body(f"job-1-{number}", **placed(), **waiting("ContainerCreating"))
            harness.cluster.put(body)
        await asyncio.sleep(1)
    assert [call for _, call in harness.calls[before:]].count("get Events") == 1


@in_virtual_time
async def test_worker_survives_any_error() -> None:
    harness = Harness()
    broken = True

    def fail(call: str) -> None:
        if broken:
            raise RuntimeError("a bug")

    harness.gateway.before = fail
    async with harness.operator(workers=1) as controller:
        harness.cluster.apply()
        await asyncio.sleep(100)
        broken = False
        await harness.finish_run()
        assert len(controller.queue) == 0


@in_virtual_time
async def test_silent_driver_does_not_reset_progress() -> None:
    harness = Harness()
    async with harness.operator():
        ray_job = await harness.run_job()
        await ray_job.answer(Answer(reached=True, report=report(rows=40)))
        await ray_job.answer(Answer(reached=False))
        assert (harness.phase(), harness.reason()) == ("Running", "DriverSilent")
        await ray_job.answer(Answer(reached=True, report=report(JobState.PREPARING)))
        await ray_job.answer(Answer(reached=True, report=report(rows=10)))
        assert (harness.phase(), harness.reason()) == ("Running", "Running")
        assert harness.cluster.status()["progress"] == {"rows": 40}


@in_virtual_time
async def test_job_ends_after_a_minute_without_a_report() -> None:
    harness = Harness()
    async with harness.operator():
        ray_job = await harness.run_job()
        end = {"endTime": "2026-03-01T12:00:30Z"}
        began = clock()
        await ray_job.step(jobStatus="SUCCEEDED", jobDeploymentStatus="Complete", **end)
        assert harness.phase() == "Finalizing"
        await until(harness.is_finished)
        assert 60 <= clock() - began <= 90
    assert harness.phase() == "Succeeded"
    assert "could not be read" in harness.cluster.status()["conditions"][0]["message"]
