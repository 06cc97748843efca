"""The limit of device hours: a job that has used all of them fails."""

from __future__ import annotations

from datetime import timedelta

import pytest

from batchinference.spec.report import JobState
from batchinference_operator.status.pods import PodView
from batchinference_operator.status.timestamps import to_rfc3339
from plugins.messages import Messages
from support.operator.objects import placed, pod_body
from support.operator.reconcile_loop import ReconcileLoop
from support.operator.virtual_time import BEGINNING

HOURS = {"limits": {"deviceHours": 1.0}}


def pods(gpus: int, *, attempt: int = 1, since: float = 0.0) -> tuple[PodView, ...]:
    """Return one worker with GPUs, scheduled `since` seconds after BEGINNING."""
    status = placed(to_rfc3339(BEGINNING + timedelta(seconds=since)))
    return (PodView.of(pod_body("w", attempt=attempt, gpus=gpus, **status)),)


def running(gpus: int = 4, **spec: object) -> ReconcileLoop:
    loop = ReconcileLoop(**{"cluster": HOURS, **spec})
    loop.run()
    loop.pods = pods(gpus)
    return loop


def test_job_fails_when_its_gpu_hours_are_used(messages: Messages) -> None:
    loop = running()
    assert loop.reconcile(899.0).requeue_after == 1.0
    assert loop.phase == "Running"
    loop.reconcile(1)
    assert (loop.phase, loop.reason) == ("Failed", "LimitExceeded")
    messages.check(loop.message)
    assert loop.attempt["cause"] == "LimitExceeded"
    assert loop.status["deviceSeconds"] == 3600
    assert [seen.name for seen in loop.reconcile(60).delete_ray_jobs] == ["job-1"]


def test_gpu_hours_of_all_attempts_count() -> None:
    loop = running(retry={"backoff": {"initial": "0s"}})
    loop.reconcile(600)
    loop.fail()
    loop.reconcile()
    loop.finalize_deletions()
    loop.pods = ()
    loop.run()
    loop.pods = pods(4, attempt=2, since=600)
    loop.reconcile(299)
    assert loop.phase == "Running"
    loop.reconcile(1)
    assert loop.reason == "LimitExceeded"


def test_platform_limit_overrides_retries() -> None:
    loop = running(retry={"maxAttempts": 9, "onCause": {"LimitExceeded": "Retry"}})
    loop.reconcile(900)
    assert loop.phase == "Failed"


def test_attempt_that_uses_up_gpu_hours_is_not_retried() -> None:
    loop = running(retry={"backoff": {"initial": "0s"}})
    loop.now += timedelta(seconds=900)
    loop.fail()
    assert loop.phase == "Retrying"
    loop.reconcile()
    assert (loop.phase, loop.reason) == ("Failed", "LimitExceeded")


def test_success_wins_over_the_gpu_hours() -> None:
    loop = running()
    loop.set_report(JobState.SUCCEEDED)
    loop.reconcile(1000)
    assert loop.phase == "Succeeded"


@pytest.mark.parametrize("own", [{}, {"deviceHours": 50.0}], ids=["none", "more"])
def test_platform_limit_applies_to_every_job(own: dict[str, float]) -> None:
    loop = running(cluster={"limits": own})
    loop.limit(device_hours=1.0)
    loop.reconcile(900)
    assert loop.reason == "LimitExceeded"


def test_job_without_limit_continues() -> None:
    loop = running(cluster={})
    loop.reconcile(1_000_000)
    assert loop.phase == "Running"
