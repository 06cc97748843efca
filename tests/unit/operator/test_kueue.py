"""A job in a queue of Kueue: held back, admitted, and taken back again."""

from __future__ import annotations

import pytest

from batchinference.rendering import QUEUE_LABEL
from batchinference.spec.report import JobState
from batchinference_operator.reconcile.looks import QUEUED_SECONDS
from batchinference_operator.reconcile.model import JobView
from batchinference_operator.reconcile.standing import stand_of
from support.operator.objects import RUNNING, SETTINGS, job_body
from support.operator.reconcile_loop import ReconcileLoop


def hold(loop: ReconcileLoop, seconds: float = 0.0) -> None:
    """Kueue suspends the RayJob, and KubeRay stops it."""
    loop.ray_job["spec"]["suspend"] = True
    loop.ray_job["status"] = {"jobDeploymentStatus": "Suspended"}
    loop.reconcile(seconds)


def admit(loop: ReconcileLoop, seconds: float = 0.0) -> None:
    loop.ray_job["spec"]["suspend"] = False
    loop.ray_job["status"] = {"jobDeploymentStatus": "Initializing"}
    loop.report = None
    loop.reconcile(seconds)


def queued(**spec: object) -> ReconcileLoop:
    loop = ReconcileLoop(cluster={"queue": "gpu"}, **spec)
    loop.plan()
    loop.ray_job["metadata"]["labels"][QUEUE_LABEL] = "gpu"
    hold(loop)
    return loop


def test_the_ray_job_is_created_for_kueue_to_admit() -> None:
    loop = ReconcileLoop(cluster={"queue": "gpu", "queuePriorityClass": "nightly"})
    made = loop.reconcile().create[-1]
    assert made["spec"]["suspend"] is True
    assert made["metadata"]["labels"][QUEUE_LABEL] == "gpu"
    assert made["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "nightly"
    assert made["metadata"]["annotations"] == {"kueue.x-k8s.io/elastic-job": "true"}


def test_while_it_is_held_back_the_job_is_queued() -> None:
    loop = queued()
    assert (loop.phase, loop.reason) == ("Pending", "Queued")
    assert loop.message == "RayJob job-1 waits to be admitted by Kueue from queue gpu"
    assert loop.reconcile().again_after == QUEUED_SECONDS


def test_kueues_own_words_say_why() -> None:
    loop = queued()
    loop.words = {"job-1": "couldn't assign flavors to pod set head: insufficient quota"}
    loop.reconcile()
    assert loop.message.endswith("gpu: couldn't assign flavors to pod set head: insufficient quota")


def test_fields_written_by_kueue_are_kept() -> None:
    loop = queued()
    for _ in range(3):
        actions = loop.reconcile(1000)
        assert (actions.create, actions.remove, actions.release) == ((), (), ())
    admit(loop)
    assert [body["kind"] for body in loop.reconcile().create] == []


@pytest.mark.parametrize("deadline", ["pending", "active"])
def test_its_deadlines_begin_when_it_is_admitted(deadline: str) -> None:
    loop = queued(deadlines={deadline: "10m"})
    loop.reconcile(86_400)
    assert loop.phase == "Pending"
    admit(loop)
    loop.reconcile(599)
    assert loop.phase == "Starting"
    loop.reconcile(1)
    assert (loop.phase, loop.reason) == ("Failed", "DeadlineExceeded")


def test_its_total_time_counts_in_the_queue_as_well() -> None:
    loop = queued(deadlines={"total": "1h"})
    loop.reconcile(3600)
    assert (loop.phase, loop.reason) == ("Failed", "DeadlineExceeded")


def running(**spec: object) -> ReconcileLoop:
    loop = queued(**spec)
    admit(loop)
    loop.set_kuberay_status(**RUNNING)
    loop.set_report(JobState.RUNNING, rows=10)
    loop.reconcile()
    assert loop.phase == "Running"
    return loop


def test_preempted_job_is_queued_in_the_same_attempt() -> None:
    loop = running()
    hold(loop)
    assert (loop.phase, loop.reason) == ("Pending", "Queued")
    admit(loop, 3600)
    assert (loop.phase, loop.status["attempt"]) == ("Starting", 1)
    assert "outcome" not in loop.attempt


@pytest.mark.parametrize("cause", ["Interrupted", "Application", "NodeLost"])
def test_what_its_driver_says_when_its_pods_are_taken_is_no_failure(cause: str) -> None:
    loop = running()
    loop.set_report(JobState.FAILED, reason=cause, message="SIGTERM")
    hold(loop)
    assert (loop.phase, loop.reason) == ("Pending", "Queued")
    assert loop.status.get("failedAttempts", 0) == 0


def test_success_is_final_despite_kueue() -> None:
    loop = running()
    loop.set_report(JobState.SUCCEEDED)
    hold(loop)
    assert loop.phase == "Succeeded"


@pytest.mark.parametrize("deadlines", [{"stall": "5m"}, {"pending": "5m"}], ids=str)
def test_a_job_that_was_taken_back_has_its_time_anew(deadlines: dict[str, str]) -> None:
    loop = running(deadlines=deadlines)
    hold(loop)
    loop.reconcile(3600)
    admit(loop)
    loop.reconcile(290)
    assert loop.phase == "Starting"


def test_progress_does_not_go_back() -> None:
    loop = running()
    hold(loop)
    assert loop.status["progress"]["rows"] == 10


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
