"""The reconcile loop with an API server that refuses, fails or is late, or with a silent driver."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from batchinference.spec.report import JobState
from batchinference_operator.controller.job_controller import stores
from batchinference_operator.kube.api_errors import Conflict, Refused, Unreachable
from batchinference_operator.reconcile import running_attempt
from batchinference_operator.reconcile.admission_queue import Concurrency
from batchinference_operator.reconcile.create_errors import UNREACHABLE_SECONDS
from batchinference_operator.reconcile.job_view import SKIPPED_FIELDS
from batchinference_operator.reconcile.observed_and_actions import DriverAnswer
from batchinference_operator.status.timestamps import to_rfc3339
from plugins.messages import Messages
from support.operator.fake_cluster import FakeKubeApi
from support.operator.harness import Harness, running_operator
from support.operator.objects import CONFIG, RUNNING, job_body, placed, pod_body, report, waiting
from support.operator.virtual_time import clock, in_virtual_time, until, wall_clock

RESET = Unreachable("connection reset")
TIMED_OUT = Unreachable('500: failed calling webhook "v.ray.io": context deadline exceeded')


def fail_calls(harness: Harness, fault: Callable[[str], Exception | None]) -> None:
    """Make the API server fail each call for which `fault` returns an error."""

    def before(call: str) -> None:
        harness.record(call)
        error = fault(call)
        if error is not None:
            raise error

    harness.api.before = before


def times_of(harness: Harness, wanted: str) -> list[float]:
    return [when for when, call in harness.calls if call == wanted]


def reasons(harness: Harness) -> set[str]:
    """Return all reasons that the status has had."""
    return {status["conditions"][0]["reason"] for _, status in harness.cluster.history}


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the warnings and errors that the operator has logged itself, not those of kopf."""
    own = (record for record in caplog.records if record.name == "batchinference.operator")
    return [record for record in own if record.levelno > logging.INFO]


@in_virtual_time
async def test_conflict_requeues_the_job(harness: Harness) -> None:
    def change_job(call: str) -> None:
        if call == "patch status" and harness.count(call) == 1:
            harness.cluster.patch("BatchInference", "job", {"metadata": {"labels": {"a": "b"}}})

    fail_calls(harness, change_job)
    async with harness.operator(lag={"BatchInference": 60, "RayJob": 60}):
        harness.cluster.apply()
        await until(harness.phase)
    watch_shows_change = 120
    tries = [when for when in times_of(harness, "patch status") if when < watch_shows_change]
    assert len(tries) > 1, "it does not depend on the watch"


@in_virtual_time
async def test_conflict_is_not_logged(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    async with harness.operator(lag={"BatchInference": 30}):
        await harness.finish_job()
    assert warnings(caplog) == []


@in_virtual_time
async def test_failing_call_is_retried_with_backoff_until_success(harness: Harness) -> None:
    failures = {"create ConfigMap": 5, "release": 1}
    fail_calls(
        harness, lambda call: RESET if harness.count(call) <= failures.get(call, 0) else None
    )
    async with harness.operator():
        harness.cluster.apply()
        await harness.ray_job().run()
        await until(lambda: harness.count("release") == 2)
    assert times_of(harness, "create ConfigMap")[:6] == [0, 0.5, 1.5, 3.5, 7.5, 15.5]
    first, second = times_of(harness, "release")
    assert second - first == 0.5, "the success has reset the backoff"


@in_virtual_time
async def test_api_server_outage_logs_one_warning_per_attempt(
    harness: Harness, caplog: pytest.LogCaptureFixture, messages: Messages
) -> None:
    harness.fail_call("create ConfigMap", Unreachable("Cannot connect to host 10.0.0.1:443"))
    async with harness.recorded_operator() as metrics:
        harness.cluster.apply()
        await asyncio.sleep(10)
    tries = harness.count("create ConfigMap")
    assert tries > 3
    for kind, count in {"unreachable": tries, "error": 0, "refused": 0}.items():
        name = "batchinference_reconcile_errors_total"
        assert metrics.registry.get_sample_value(name, {"kind": kind}) == count, kind
    logged = warnings(caplog)
    assert [(one.levelname, one.exc_info) for one in logged] == [("WARNING", None)] * tries
    messages.check(logged[0].message)


@in_virtual_time
async def test_job_that_cannot_start_does_not_block_another(harness: Harness) -> None:
    class RejectingKubeApi(FakeKubeApi):
        async def create(self, body: dict[str, Any]) -> None:
            if body["metadata"]["name"].startswith("bad"):
                raise RuntimeError("a bug")
            await super().create(body)

    async with running_operator(RejectingKubeApi(harness.cluster), harness.driver, workers=1):
        harness.cluster.apply("bad")
        harness.cluster.apply("good")
        await harness.ray_job("good").run()
        await until(lambda: harness.is_finished("good"))
    assert harness.cluster.status("bad") == {}


@in_virtual_time
async def test_refusal_shows_in_status_until_objects_are_created(harness: Harness) -> None:
    refusal = {"create RayJob": Refused("403: exceeded quota")}
    fail_calls(harness, refusal.get)
    async with harness.operator():
        harness.cluster.apply()
        await until(lambda: harness.reason() == "Refused")
        assert harness.phase() == "Pending"
        assert harness.cluster.status()["conditions"][0]["message"] == "403: exceeded quota"
        await asyncio.sleep(300)
        assert harness.count("patch status") == 1
        assert 5 < harness.count("create RayJob") < 15, "it is retried with backoff"
        refusal.clear()
        await harness.finish_run()
    assert harness.phase() == "Succeeded"


@pytest.mark.parametrize("kind", ["ConfigMap", "RayJob", "Secret", "PodDisruptionBudget"])
@in_virtual_time
async def test_short_api_server_outage_does_not_show_in_status(harness: Harness, kind: str) -> None:
    failing = f"create {kind}"
    fail_calls(
        harness,
        lambda call: TIMED_OUT if call == failing and clock() < UNREACHABLE_SECONDS / 2 else None,
    )
    async with harness.recorded_operator():
        await harness.finish_job()
    assert harness.phase() == "Succeeded"
    assert reasons(harness).isdisjoint({"Refused", "ApiServerUnavailable"})
    posted = [event["reason"] for event in harness.cluster.events.values()]
    assert posted == ["AttemptStarted", "Succeeded"]


@pytest.mark.parametrize("limit", [None, 1], ids=["any", "one-at-a-time"])
@in_virtual_time
async def test_long_api_server_outage_shows_in_status(
    harness: Harness, limit: int | None, messages: Messages
) -> None:
    outage = {"create RayJob": TIMED_OUT}
    fail_calls(harness, outage.get)
    config = replace(CONFIG, concurrency=Concurrency(total=limit))
    async with harness.operator(config=config):
        harness.cluster.apply()
        await until(lambda: harness.reason() == "ApiServerUnavailable")
        assert UNREACHABLE_SECONDS <= clock() <= 2.5 * UNREACHABLE_SECONDS
        assert harness.phase() == "Pending"
        messages.check(harness.cluster.status()["conditions"][0]["message"])
        outage.clear()
        await harness.finish_run()
    assert harness.phase() == "Succeeded"


@in_virtual_time
async def test_each_outage_has_its_own_grace_period(harness: Harness) -> None:
    back = UNREACHABLE_SECONDS / 2
    fail_calls(
        harness, lambda call: TIMED_OUT if call == "create RayJob" and clock() < back else None
    )
    async with harness.operator():
        harness.cluster.apply(
            retry={"onCause": {"Application": "Retry"}, "backoff": {"initial": "0s"}}
        )
        await until(lambda: harness.cluster.get("RayJob", "job-1"))
        back = clock() + 2 * UNREACHABLE_SECONDS
        await harness.ray_job().run(JobState.FAILED)
        await until(lambda: harness.cluster.get("RayJob", "job-2"))
    assert clock() >= back
    assert "ApiServerUnavailable" not in reasons(harness)


@in_virtual_time
async def test_deadline_applies_while_the_token_is_refused(harness: Harness) -> None:
    harness.fail_call("create Secret", Refused("403: exceeded quota: secrets"))
    async with harness.operator():
        harness.cluster.apply(deadlines={"pending": "10m"})
        await until(lambda: harness.reason() == "Refused")
        await until(harness.is_finished, 700)
        assert (harness.phase(), harness.reason()) == ("Failed", "DeadlineExceeded")
        await until(lambda: harness.cluster.get("RayJob", "job-1") is None)


@in_virtual_time
async def test_job_runs_without_a_refused_budget(
    harness: Harness, caplog: pytest.LogCaptureFixture, messages: Messages
) -> None:
    harness.fail_call("create PodDisruptionBudget", Refused("403: is forbidden"))
    async with harness.operator():
        await harness.finish_job()
    assert (harness.phase(), "Refused" in reasons(harness)) == ("Succeeded", False)
    (warning,) = warnings(caplog)
    messages.check(warning.message)


FAULTS = [Refused("403: events is forbidden"), Conflict("try again"), Unreachable("no answer")]


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
@in_virtual_time
async def test_unreadable_events_do_not_block_a_job(
    harness: Harness, fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    harness.fail_call("get Events", fault)
    pods = [f"job-1-{number}" for number in range(3)]
    async with harness.operator():
        await harness.start_job()
        before = harness.count("get Events")
        for name in pods:
            harness.cluster.put(pod_body(name, **placed(), **waiting("ContainerCreating")))
        await asyncio.sleep(95)
        assert harness.count("get Events") - before == 1, "it is not repeated per pod"
        await asyncio.sleep(505)
        harness.cluster.patch("BatchInference", "job", {"spec": {"suspend": True}})
        await until(lambda: harness.cluster.get("RayJob", "job-1") is None, 30)
        for name in pods:
            harness.cluster.delete("Pod", name)
        await until(lambda: harness.phase() == "Suspended", 30)
    (warning,) = warnings(caplog)
    assert "Events cannot be read" in warning.message


@in_virtual_time
async def test_unreadable_object_is_skipped(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    async with harness.operator() as controller:
        for store in stores(controller).values():
            store.put({"metadata": {"namespace": "team"}})
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2


@in_virtual_time
async def test_worker_survives_any_error(harness: Harness) -> None:
    bugs = [RuntimeError("a bug")]
    fail_calls(harness, lambda call: bugs[0] if bugs else None)
    async with harness.operator(workers=1) as controller:
        harness.cluster.apply()
        await asyncio.sleep(100)
        bugs.clear()
        await harness.finish_run()
        assert len(controller.queue) == 0


@in_virtual_time
async def test_report_that_breaks_a_reconcile_evades_no_deadline(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator's own clock ends the job, regardless of the driver's report."""

    def fail(_: Any, last_report: Any) -> None:
        if last_report is not None:
            raise OverflowError

    async with harness.operator():
        harness.cluster.apply(deadlines={"active": "10m"})
        await until(lambda: harness.cluster.get("RayJob", "job-1"))
        ray_job = harness.ray_job()
        await ray_job.step(**RUNNING)
        await ray_job.answer(DriverAnswer(reached=True, report=report(rows=40)))
        monkeypatch.setattr(running_attempt, "without_decrease", fail)
        await until(harness.is_finished, 700)
    assert harness.reason() == "DeadlineExceeded"


@in_virtual_time
async def test_events_of_a_pod_are_listed_after_a_minute_and_then_less_often(
    harness: Harness,
) -> None:
    async with harness.operator():
        await harness.start_job()
        await harness.ray_job().start()
        pod = pod_body(**placed(to_rfc3339(wall_clock()), **waiting("ContainerCreating")))
        harness.cluster.put(pod)
        harness.cluster.warnings["job-1-head"] = "secret not found"
        await asyncio.sleep(1)
        harness.calls.clear()
        await asyncio.sleep(54)
        assert harness.count("get Events") == 0
        await until(lambda: harness.reason() == "ContainerConfig", 60)
        await asyncio.sleep(3600)
        assert harness.count("get Events") <= 3600 / 160 + 6
        assert harness.reason() == "ContainerConfig", "what was said last still holds"


@in_virtual_time
async def test_slow_writes_to_large_jobs_occupy_one_worker(harness: Harness) -> None:
    """The API server takes seconds for each of them."""
    names = [f"large-{number}" for number in range(8)]

    class SlowServer(FakeKubeApi):
        async def patch_status(self, namespace: str, name: str, *args: Any) -> Any:
            if name in names:
                assert not self.busy, "two large writes at a time"
                self.busy = True
                await asyncio.sleep(25)
                self.busy = False
            return await super().patch_status(namespace, name, *args)

        busy = False

    harness.api = SlowServer(harness.cluster, before=harness.record)
    async with harness.operator():
        for name in names:
            harness.cluster.put(
                {**job_body(name), SKIPPED_FIELDS: {"spec": "spec: it is too large"}}
            )
        harness.cluster.apply()
        begin = clock()
        await until(lambda: harness.phase() == "Starting")
        assert clock() - begin < 5
        await until(lambda: all(map(harness.is_finished, names)))
    assert clock() - begin < len(names) * 32
