"""A job in a queue of Kueue: suspended, admitted and preempted."""

from __future__ import annotations

import pytest

from batchinference.rendering import QUEUE_LABEL, RELEASED
from batchinference.spec.report import JobState
from batchinference_operator.reconcile.admission_queue import queue_entry
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.requeue import POLL_SECONDS, QUEUED_SECONDS
from batchinference_operator.status.pod_view import PodView
from batchinference_operator.status.timestamps import to_rfc3339
from plugins.messages import Messages
from support.operator.objects import CONFIG, RUNNING, job_body, pod_body
from support.operator.reconcile_loop import ReconcileLoop


def write_delay(loop: ReconcileLoop, seconds: float = 0.0) -> None:
    """Suspend the RayJob as Kueue does, and stop it as KubeRay does."""
    loop.ray_job["spec"]["suspend"] = True
    loop.ray_job["status"] = {"jobDeploymentStatus": "Suspended"}
    loop.reconcile(seconds)


def admit(loop: ReconcileLoop, seconds: float = 0.0) -> None:
    loop.ray_job["spec"]["suspend"] = False
    loop.ray_job["status"] = {"jobDeploymentStatus": "Initializing"}
    loop.report = None
    loop.reconcile(seconds)


def queued(**spec: object) -> ReconcileLoop:
    loop = ReconcileLoop(cluster={"queueName": "gpu"}, **spec)
    loop.plan()
    loop.ray_job["metadata"]["labels"][QUEUE_LABEL] = "gpu"
    write_delay(loop)
    return loop


def test_ray_job_is_created_suspended_for_kueue() -> None:
    loop = ReconcileLoop(cluster={"queueName": "gpu", "queuePriorityClassName": "nightly"})
    made = loop.reconcile().create[-1]
    assert made["spec"]["suspend"] is True
    assert made["metadata"]["labels"][QUEUE_LABEL] == "gpu"
    assert made["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "nightly"
    assert made["metadata"]["annotations"]["kueue.x-k8s.io/elastic-job"] == "true"


def test_ray_job_of_a_fixed_size_has_no_gates() -> None:
    workers = {"min": 1, "max": 1}
    loop = ReconcileLoop(cluster={"queueName": "gpu", "workers": workers})
    made = loop.reconcile().create[-1]
    assert "kueue.x-k8s.io/elastic-job" not in made["metadata"]["annotations"]


def test_suspended_ray_job_is_queued_with_the_reason_of_kueue(messages: Messages) -> None:
    loop = queued()
    assert (loop.phase, loop.reason) == ("Pending", "Queued")
    messages.check(loop.message)
    waits = [loop.reconcile(seconds).requeue_after for seconds in (0, 5, 15, 200)]
    assert waits == [POLL_SECONDS, 5, 20, QUEUED_SECONDS], "Kueue has no reason yet"
    loop = queued()
    reason = "couldn't assign flavors to pod set head: insufficient quota"
    loop.messages = {"job-1": reason}
    assert loop.reconcile().requeue_after == QUEUED_SECONDS
    assert loop.message.endswith(f"gpu: {reason}")


def test_fields_written_by_kueue_are_kept() -> None:
    loop = queued()
    for _ in range(3):
        actions = loop.reconcile(1000)
        assert (actions.create, actions.delete_ray_jobs, actions.release_clusters) == ((), (), ())
    admit(loop)
    assert [body["kind"] for body in loop.reconcile().create] == []


@pytest.mark.parametrize("deadline", ["pending", "active"])
def test_attempt_deadlines_start_at_admission(deadline: str) -> None:
    loop = queued(deadlines={deadline: "10m"})
    loop.reconcile(86_400)
    assert loop.phase == "Pending"
    admit(loop)
    loop.reconcile(599)
    assert loop.phase == "Starting"
    loop.reconcile(1)
    assert (loop.phase, loop.reason) == ("Failed", "DeadlineExceeded")


def test_total_deadline_counts_in_the_queue() -> None:
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
    write_delay(loop)
    assert (loop.phase, loop.reason) == ("Pending", "Queued")
    assert loop.status["progress"]["rows"] == 10
    admit(loop, 3600)
    assert (loop.phase, loop.status["attempt"]) == ("Starting", 1)
    assert "outcome" not in loop.attempt


@pytest.mark.parametrize(
    ("state", "cause", "phase"),
    [
        (JobState.FAILED, "Interrupted", "Pending"),
        (JobState.FAILED, "Application", "Pending"),
        (JobState.FAILED, "NodeLost", "Pending"),
        (JobState.SUCCEEDED, None, "Succeeded"),
    ],
)
def test_only_a_success_report_counts_at_preemption(
    state: JobState, cause: str | None, phase: str
) -> None:
    loop = running()
    loop.set_report(state, reason=cause, message="SIGTERM")
    write_delay(loop)
    assert (loop.phase, loop.reason) == (phase, "Queued" if cause else "Succeeded")
    assert loop.status.get("failedAttempts", 0) == 0


@pytest.mark.parametrize("deadline", ["stall", "pending"])
def test_deadlines_restart_after_preemption(deadline: str) -> None:
    loop = running(deadlines={deadline: "5m"})
    write_delay(loop)
    loop.reconcile(3600)
    admit(loop)
    loop.reconcile(290)
    assert loop.phase == "Starting"
    loop.set_kuberay_status(**RUNNING, rayClusterName="job-1-cluster")
    loop.set_report(JobState.RUNNING, rows=10)
    gate(loop)
    assert (loop.phase, loop.reason) == ("Pending", "Queued")
    loop.reconcile(10)
    causes = {"stall": None, "pending": "DeadlineExceeded"}
    assert loop.attempt.get("cause") == causes[deadline], "rows from before count as no progress"


@pytest.mark.parametrize("by", ["the job", "the platform"])
def test_queued_job_needs_no_admission(by: str) -> None:
    body, platform = job_body(), CONFIG.defaults
    if by == "the job":
        body["spec"]["cluster"] = {"queueName": "gpu"}
    else:
        platform = platform.model_copy(update={"queue_name": "gpu"})
    entry = queue_entry(JobView.of(body), platform)
    assert (entry.waiting, entry.running) == (False, False)
    assert queue_entry(JobView.of(job_body()), CONFIG.defaults).waiting


def gate(loop: ReconcileLoop, seconds: float = 0.0, *, gated: bool = True) -> None:
    """Add a scheduling gate to a worker pod as Kueue does, or remove it."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                 "message": "Scheduling is blocked due to non-empty scheduling gates"}  # fmt: skip
    body = pod_body("job-1-worker", conditions=[condition] if gated else [])
    loop.pods = (PodView.of(body),)
    loop.reconcile(seconds)


def test_gated_pod_is_queued_and_its_deadline_starts_when_it_is_admitted(
    messages: Messages,
) -> None:
    loop = ReconcileLoop(deadlines={"pending": "10m"}, cluster={"queueName": "gpu"})
    loop.run(rows=0)
    gate(loop)
    assert (loop.phase, loop.reason) == ("Pending", "Queued")
    messages.check(loop.message)
    loop.messages = {"job-1": "insufficient quota"}
    gate(loop, 86_400)
    assert (loop.reason, loop.message[-18:]) == ("Queued", "insufficient quota")
    gate(loop, gated=False)
    assert loop.phase == "Running"
    gate(loop, 599, gated=False)
    assert loop.phase == "Running"
    gate(loop, 1, gated=False)
    assert loop.attempt["cause"] == "DeadlineExceeded"


def test_worker_that_is_replaced_is_released_and_the_deadlines_continue() -> None:
    """Kueue looks at the gates of pods only when the RayJob changes."""
    loop = ReconcileLoop(deadlines={"pending": "10m"}, cluster={"queueName": "gpu"})
    loop.run(rows=0)
    loop.ray_job["metadata"]["labels"] = {QUEUE_LABEL: "gpu"}
    gate(loop)
    gate(loop, gated=False)
    gate(loop, 60)
    assert loop.reconcile().release_pods is not None
    loop.ray_job["metadata"]["annotations"] = {RELEASED: to_rfc3339(loop.now)}
    assert loop.reconcile(59).release_pods is None
    assert loop.reconcile(1).release_pods is not None
    gate(loop, 600)
    assert loop.attempt["cause"] == "DeadlineExceeded"
