"""A job in a queue of Kueue: held back, admitted, and taken back again."""

from __future__ import annotations

import pytest

from batchinference.rendering import QUEUE_LABEL
from batchinference.spec.report import JobState
from batchinference_operator.reconcile.looks import QUEUED_SECONDS
from batchinference_operator.reconcile.model import JobView
from batchinference_operator.reconcile.standing import stand_of
from support.looks import Looks
from support.operator_objects import RUNNING, SETTINGS, job_body


def hold(looks: Looks, seconds: float = 0.0) -> None:
    """Kueue suspends the RayJob, and KubeRay stops it."""
    looks.ray_job["spec"]["suspend"] = True
    looks.ray_job["status"] = {"jobDeploymentStatus": "Suspended"}
    looks.look(seconds)


def admit(looks: Looks, seconds: float = 0.0) -> None:
    looks.ray_job["spec"]["suspend"] = False
    looks.ray_job["status"] = {"jobDeploymentStatus": "Initializing"}
    looks.said = None
    looks.look(seconds)


def queued(**spec: object) -> Looks:
    looks = Looks(cluster={"queue": "gpu"}, **spec)
    looks.plan()
    looks.ray_job["metadata"]["labels"][QUEUE_LABEL] = "gpu"
    hold(looks)
    return looks


def test_the_ray_job_is_created_for_kueue_to_admit() -> None:
    looks = Looks(cluster={"queue": "gpu", "queuePriorityClass": "nightly"})
    made = looks.look().create[-1]
    assert made["spec"]["suspend"] is True
    assert made["metadata"]["labels"][QUEUE_LABEL] == "gpu"
    assert made["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "nightly"
    assert made["metadata"]["annotations"] == {"kueue.x-k8s.io/elastic-job": "true"}


def test_while_it_is_held_back_the_job_is_queued() -> None:
    looks = queued()
    assert (looks.phase, looks.reason) == ("Pending", "Queued")
    assert looks.message == "RayJob job-1 waits to be admitted by Kueue from queue gpu"
    assert looks.look().again_after == QUEUED_SECONDS


def test_kueues_own_words_say_why() -> None:
    looks = queued()
    looks.words = {"job-1": "couldn't assign flavors to pod set head: insufficient quota"}
    looks.look()
    assert looks.message.endswith(
        "gpu: couldn't assign flavors to pod set head: insufficient quota"
    )


def test_nothing_that_kueue_writes_is_undone() -> None:
    looks = queued()
    for _ in range(3):
        actions = looks.look(1000)
        assert (actions.create, actions.remove, actions.release) == ((), (), ())
    admit(looks)
    assert [body["kind"] for body in looks.look().create] == []


@pytest.mark.parametrize("deadline", ["pending", "active"])
def test_its_deadlines_begin_when_it_is_admitted(deadline: str) -> None:
    looks = queued(deadlines={deadline: "10m"})
    looks.look(86_400)
    assert looks.phase == "Pending"
    admit(looks)
    looks.look(599)
    assert looks.phase == "Starting"
    looks.look(1)
    assert (looks.phase, looks.reason) == ("Failed", "DeadlineExceeded")


def test_its_total_time_counts_in_the_queue_as_well() -> None:
    looks = queued(deadlines={"total": "1h"})
    looks.look(3600)
    assert (looks.phase, looks.reason) == ("Failed", "DeadlineExceeded")


def running(**spec: object) -> Looks:
    looks = queued(**spec)
    admit(looks)
    looks.play(**RUNNING)
    looks.tell(JobState.RUNNING, rows=10)
    looks.look()
    assert looks.phase == "Running"
    return looks


def test_a_job_that_loses_its_place_is_queued_again_in_the_same_attempt() -> None:
    looks = running()
    hold(looks)
    assert (looks.phase, looks.reason) == ("Pending", "Queued")
    admit(looks, 3600)
    assert (looks.phase, looks.status["attempt"]) == ("Starting", 1)
    assert "outcome" not in looks.attempt


@pytest.mark.parametrize("cause", ["Interrupted", "Application", "NodeLost"])
def test_what_its_driver_says_when_its_pods_are_taken_is_no_failure(cause: str) -> None:
    looks = running()
    looks.tell(JobState.FAILED, reason=cause, message="SIGTERM")
    hold(looks)
    assert (looks.phase, looks.reason) == ("Pending", "Queued")
    assert looks.status.get("failedAttempts", 0) == 0


def test_success_stands_whatever_kueue_does_afterwards() -> None:
    looks = running()
    looks.tell(JobState.SUCCEEDED)
    hold(looks)
    assert looks.phase == "Succeeded"


@pytest.mark.parametrize("deadlines", [{"stall": "5m"}, {"pending": "5m"}], ids=str)
def test_a_job_that_was_taken_back_has_its_time_anew(deadlines: dict[str, str]) -> None:
    looks = running(deadlines=deadlines)
    hold(looks)
    looks.look(3600)
    admit(looks)
    looks.look(290)
    assert looks.phase == "Starting"


def test_progress_does_not_go_back() -> None:
    looks = running()
    hold(looks)
    assert looks.status["progress"]["rows"] == 10


@pytest.mark.parametrize("by", ["the job", "the platform"])
def test_a_job_in_a_queue_has_no_turn(by: str) -> None:
    body, platform = job_body(), SETTINGS.defaults
    if by == "the job":
        body["spec"]["cluster"] = {"queue": "gpu"}
    else:
        platform = platform.model_copy(update={"queue": "gpu"})
    stand = stand_of(JobView.of(body), platform)
    assert (stand.waits, stand.holds) == (False, False)
    assert stand_of(JobView.of(job_body()), SETTINGS.defaults).waits
