"""The GPU hours that a job may use: with them it ends, whatever attempt it is at."""

from __future__ import annotations

from datetime import timedelta

import pytest

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.clock import stamp
from batchinference_operator.status.pods import PodView
from support.looks import Looks
from support.operator_objects import placed, pod_body
from support.virtual_time import BEGINNING

HOURS = {"limits": {"gpuHours": 1.0}}


def pods(gpus: int, *, attempt: int = 1, since: float = 0.0) -> tuple[PodView, ...]:
    """One worker with so many GPUs, which it has had since so many seconds."""
    status = placed(stamp(BEGINNING + timedelta(seconds=since)))
    return (PodView.of(pod_body("w", attempt=attempt, gpus=gpus, **status)),)


def running(gpus: int = 4, **spec: object) -> Looks:
    looks = Looks(**{"cluster": HOURS, **spec})
    looks.run()
    looks.pods = pods(gpus)
    return looks


def test_a_job_goes_on_until_its_gpu_hours_are_used() -> None:
    looks = running()
    looks.look(899)
    assert looks.phase == "Running"
    looks.look(1)
    assert (looks.phase, looks.reason) == ("Failed", "LimitExceeded")
    assert looks.message == (
        "the job has used the 1 GPU hours that cluster.limits.gpuHours allows; "
        "what it has written stays"
    )
    assert looks.attempt["cause"] == "LimitExceeded"
    assert looks.status["gpuSeconds"] == 3600


def test_it_is_looked_at_when_they_will_be_used() -> None:
    looks = running()
    assert looks.look(899.0).again_after == 1.0


def test_what_it_holds_goes_then() -> None:
    looks = running()
    looks.look(900)
    assert [seen.name for seen in looks.look(60).remove] == ["job-1"]


def test_the_hours_of_all_attempts_count() -> None:
    looks = running(retry={"backoff": {"initial": "0s"}})
    looks.look(600)
    looks.fail()
    looks.look()
    looks.let_go()
    looks.pods = ()
    looks.run()
    looks.pods = pods(4, attempt=2, since=600)
    looks.look(299)
    assert looks.phase == "Running"
    looks.look(1)
    assert looks.reason == "LimitExceeded"


def test_no_attempt_follows_whatever_the_job_says_of_retries() -> None:
    looks = running(retry={"maxAttempts": 9, "onCause": {"LimitExceeded": "retry"}})
    looks.look(900)
    assert looks.phase == "Failed"


def test_an_attempt_that_fails_with_the_last_hour_is_not_followed_by_another() -> None:
    looks = running(retry={"backoff": {"initial": "0s"}})
    looks.now += timedelta(seconds=900)
    looks.fail()
    assert looks.phase == "Retrying"
    looks.look()
    assert (looks.phase, looks.reason) == ("Failed", "LimitExceeded")


def test_a_job_that_succeeds_with_the_last_hour_has_succeeded() -> None:
    looks = running()
    looks.tell(JobState.SUCCEEDED)
    looks.look(1000)
    assert looks.phase == "Succeeded"


@pytest.mark.parametrize("own", [{}, {"gpuHours": 50.0}], ids=["none", "more"])
def test_the_platforms_hours_hold_for_every_job(own: dict[str, float]) -> None:
    looks = running(cluster={"limits": own})
    looks.limit(gpu_hours=1.0)
    looks.look(900)
    assert looks.reason == "LimitExceeded"


def test_a_job_without_a_limit_uses_what_it_needs() -> None:
    looks = running(cluster={})
    looks.look(1_000_000)
    assert looks.phase == "Running"
