"""A suspended job releases all its resources in any phase, and can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from batchinference.rendering import QUEUE_LABEL
from batchinference.spec.job import CANCELLED_AT
from batchinference.spec.lifecycle import STOP_SECONDS
from batchinference.spec.report import JobState
from batchinference_operator.reconcile.observed_and_actions import Actions
from batchinference_operator.reconcile.ray_job_deletion import POD_TERMINATION_SECONDS
from batchinference_operator.reconcile.requeue import POLL_SECONDS
from batchinference_operator.reconcile.suspend import STOP_POLL_SECONDS, SUSPEND_POLL_SECONDS
from batchinference_operator.status.conditions import is_condition_true
from batchinference_operator.status.pod_view import PodView
from batchinference_operator.status.ray_job_view import RayJobView
from batchinference_operator.status.timestamps import to_rfc3339
from support.operator.objects import RUNNING, SUCCEEDED, placed, pod_body
from support.operator.reconcile_loop import ReconcileLoop

PHASES: dict[str, Callable[[ReconcileLoop], None]] = {
    "Pending": ReconcileLoop.queue,
    "Planning": ReconcileLoop.plan,
    "Starting": ReconcileLoop.start,
    "Running": ReconcileLoop.run,
    "Finalizing": ReconcileLoop.finalize,
    "Retrying": ReconcileLoop.lose,
}
DRIVEN = ("Running", "Finalizing")
ENDED = {**RUNNING, "jobStatus": "FAILED", "jobDeploymentStatus": "Failed"}


def running() -> ReconcileLoop:
    loop = ReconcileLoop()
    loop.run()
    return loop


def suspend(loop: ReconcileLoop) -> Actions:
    """Suspend a job whose driver does not answer."""
    loop.spec["suspend"], loop.report = True, None
    return loop.reconcile()


def suspended(phase: str = "Running") -> ReconcileLoop:
    """Return a job that was suspended in this phase, and whose driver has ended."""
    loop = ReconcileLoop()
    PHASES[phase](loop)
    assert loop.phase == phase
    suspend(loop)
    if phase in DRIVEN:
        assert names(loop.reconcile().stop_drivers) == ["job-1"]
    return loop


def removed() -> ReconcileLoop:
    """Return a suspended job whose RayJob was deleted."""
    loop = suspended()
    loop.remove()
    return loop


def names(ray_jobs: Iterable[RayJobView]) -> list[str]:
    return [seen.name for seen in ray_jobs]


def pods(**status: Any) -> tuple[PodView, ...]:
    """Return a pod of the first attempt. By default it is scheduled to a node."""
    return (PodView.of(pod_body(**status or placed())),)


def resume(loop: ReconcileLoop, seconds: float = 0.0) -> None:
    loop.spec["suspend"] = False
    loop.reconcile(seconds)


@pytest.mark.parametrize("phase", PHASES)
def test_job_is_suspended_in_any_phase_and_resumed(phase: str) -> None:
    loop = suspended(phase)
    loop.reconcile()
    assert (loop.phase, loop.reason) == ("Suspending", "Suspending")
    assert "deletionTimestamp" in loop.ray_jobs["job-1"]["metadata"]
    loop.finalize_deletions()
    assert loop.reconcile(SUSPEND_POLL_SECONDS).requeue_after is None
    assert (loop.phase, loop.reason) == ("Suspended", "Suspended")
    assert is_condition_true(loop.status, "Suspended")
    assert is_condition_true(loop.status, "Ready"), "clients need not wait for it"
    resume(loop, 3600)
    assert (loop.phase, loop.status["attempt"]) == ("Planning", 2)
    assert not is_condition_true(loop.status, "Suspended")
    loop.run()
    loop.set_report(JobState.SUCCEEDED)
    loop.reconcile()
    assert loop.phase == "Succeeded"


def test_suspension_is_recorded_before_objects_are_removed() -> None:
    loop = running()
    loop.spec["suspend"] = True
    actions = loop.reconcile()
    assert (actions.delete_ray_jobs, actions.requeue_after) == ((), 0)
    assert loop.attempt["outcome"] == "Suspended"
    assert "cause" not in loop.attempt, "it is not a failure"
    assert loop.status["failedAttempts"] == 0


def test_driver_is_stopped_before_its_ray_job_is_removed() -> None:
    assert suspended("Starting").reconcile().delete_ray_jobs, "there is no driver yet"
    loop = running()
    suspend(loop)
    actions = loop.reconcile(1)
    assert names(actions.stop_drivers) == ["job-1"]
    assert (actions.delete_ray_jobs, actions.requeue_after) == ((), STOP_POLL_SECONDS)
    actions = loop.reconcile(1)
    assert (actions.stop_drivers, names(actions.delete_ray_jobs)) == ((), ["job-1"])


def test_waiting_for_the_driver_to_stop_times_out() -> None:
    loop = running()
    suspend(loop)
    for _ in range(2):
        loop.reconcile(STOP_SECONDS / 2 - 1)
        loop.ray_jobs["job-1"]["status"]["jobStatus"] = "RUNNING"
    actions = loop.reconcile(2)
    assert (actions.stop_drivers, names(actions.delete_ray_jobs)) == ((), ["job-1"])


def test_succeeded_job_waits_for_its_report_before_suspending() -> None:
    loop = running()
    loop.report = None
    loop.set_kuberay_status(**{**SUCCEEDED, "endTime": to_rfc3339(loop.now)})
    loop.spec["suspend"] = True
    loop.reconcile()
    assert loop.phase == "Finalizing"
    loop.set_report(JobState.SUCCEEDED, rows=10)
    loop.reconcile(2)
    assert loop.phase == "Succeeded"


def test_job_created_suspended_creates_objects_when_resumed() -> None:
    loop = ReconcileLoop(suspend=True)
    actions = loop.reconcile()
    assert (actions.create, loop.phase) == ((), "Suspended")
    assert "attempts" not in loop.status
    resume(loop, 100)
    assert (loop.phase, loop.status["attempt"]) == ("Planning", 1)
    assert loop.status["operator"]["suspendedSeconds"] == 100
    loop.start()
    loop.spec["suspend"] = True
    loop.reconcile(50)
    loop.remove()
    loop.reconcile()
    resume(loop, 200)
    assert loop.status["operator"]["suspendedSeconds"] == 300


def test_unrecorded_ray_job_is_removed_and_not_missed_after_resume(loop: ReconcileLoop) -> None:
    loop.plan()
    loop.status = {}
    assert suspend(loop).delete_ray_jobs == (), "it is removed only after it is recorded"
    assert (loop.phase, loop.attempt["outcome"]) == ("Suspending", "Suspended")
    assert names(loop.reconcile().delete_ray_jobs) == ["job-1"]
    # the deletion is not observed yet
    loop.ray_jobs["job-1"]["metadata"].pop("deletionTimestamp")
    resume(loop)
    loop.ray_jobs.clear()
    loop.reconcile(10)
    assert (loop.phase, loop.status["failedAttempts"]) == ("Planning", 0)


def test_job_is_suspending_while_kuberay_is_down() -> None:
    loop = suspended()
    loop.reconcile()
    for _ in range(3):
        assert loop.reconcile(1000).requeue_after == SUSPEND_POLL_SECONDS
        assert loop.phase == "Suspending"


def test_job_is_suspending_until_no_pod_holds_resources() -> None:
    loop = removed()
    for loop.pods, phase in ((pods(), "Suspending"), (pods(phase="Failed"), "Suspended")):
        loop.reconcile()
        assert loop.phase == phase


def test_interrupted_removal_is_completed_without_kuberay() -> None:
    """The RayJob is marked as deleted, but its RayCluster is not."""
    loop = suspended()
    loop.reconcile()
    loop.ray_jobs["job-1"]["status"]["rayClusterName"] = "job-1-cluster"
    loop.pods = pods()
    assert names(loop.reconcile(5).delete_ray_jobs) == ["job-1"]
    loop.pods = ()
    assert loop.reconcile(5).delete_ray_jobs == ()


def test_eviction_by_kueue_wins_over_a_failed_report() -> None:
    loop = ReconcileLoop(cluster={"queueName": "gpu"})
    loop.run()
    loop.ray_jobs["job-1"]["metadata"]["labels"] = {QUEUE_LABEL: "gpu"}
    loop.ray_jobs["job-1"]["spec"]["suspend"] = True
    loop.set_report(JobState.FAILED, reason="Interrupted")
    loop.reconcile()
    loop.spec["suspend"] = True
    loop.reconcile()
    assert loop.phase == "Suspending"


def test_retry_waits_for_old_pods_for_a_limited_time() -> None:
    loop = removed()
    loop.pods = pods()
    resume(loop)
    assert loop.reconcile(5).create == ()
    assert loop.reconcile(POD_TERMINATION_SECONDS).create != ()


def test_early_resume_waits_for_the_old_attempt_to_go() -> None:
    loop = suspended()
    loop.reconcile()
    resume(loop)
    actions = loop.reconcile()
    assert (actions.create, actions.requeue_after) == ((), POLL_SECONDS)
    loop.finalize_deletions()
    loop.reconcile()
    assert (loop.phase, loop.status["attempt"]) == ("Planning", 2)


def test_final_report_wins_over_suspension() -> None:
    loop = running()
    loop.spec["suspend"] = True
    loop.set_report(JobState.SUCCEEDED)
    loop.reconcile()
    assert loop.phase == "Succeeded"
    assert loop.reconcile().status is None


def test_failure_before_suspension_counts_and_waits_for_resume() -> None:
    loop = ReconcileLoop(retry={"backoff": {"initial": "0s"}})
    loop.run()
    loop.spec["suspend"] = True
    loop.fail()
    assert (loop.phase, loop.attempt["outcome"]) == ("Retrying", "Failed")
    loop.remove()
    loop.reconcile()
    assert (loop.phase, loop.status["failedAttempts"]) == ("Suspended", 1)


def test_resumed_job_skips_the_backoff() -> None:
    loop = ReconcileLoop(retry={"backoff": {"initial": "10m"}})
    loop.run()
    loop.fail()
    loop.spec["suspend"] = True
    loop.remove()
    loop.reconcile()
    assert "nextAttemptTime" not in loop.status
    resume(loop, 1)
    assert (loop.phase, loop.attempt["number"]) == ("Planning", 2)


def test_cluster_kept_for_its_report_is_released() -> None:
    loop = running()
    loop.set_kuberay_status(**ENDED)
    suspend(loop)
    assert names(loop.reconcile().release_clusters) == ["job-1"]
    assert loop.phase == "Suspended"


def test_ended_ray_job_frees_its_slot_while_kuberay_is_down() -> None:
    """Only the operator deletes the RayCluster while KubeRay is down."""
    loop = suspended()
    loop.set_kuberay_status(**ENDED, rayClusterName="job-1-cluster")
    loop.pods = pods()
    actions = loop.reconcile()
    assert [seen.cluster for seen in actions.release_clusters] == ["job-1-cluster"]
    assert (loop.phase, actions.requeue_after) == ("Suspending", SUSPEND_POLL_SECONDS)
    loop.pods = ()
    assert loop.reconcile(SUSPEND_POLL_SECONDS).release_clusters == (), "it is released once"
    assert loop.phase == "Suspended"


def test_ray_job_is_not_deleted_again_while_its_pods_are_being_deleted() -> None:
    loop = ReconcileLoop()
    loop.start()
    loop.set_kuberay_status(rayClusterName="job-1-cluster")
    loop.ray_job["metadata"]["deletionTimestamp"] = "2026-03-01T12:30:00Z"
    suspend(loop)
    loop.pods = pods()
    assert names(loop.reconcile().delete_ray_jobs) == ["job-1"]
    loop.pods = tuple(replace(pod, deleting=True) for pod in loop.pods)
    assert loop.reconcile().delete_ray_jobs == ()


def test_suspended_time_before_a_late_pod_is_counted() -> None:
    loop = ReconcileLoop(suspend=True)
    loop.reconcile()
    loop.pods = pods()
    loop.reconcile(100)
    assert loop.phase == "Suspending"
    loop.pods = ()
    loop.reconcile()
    resume(loop, 10)
    assert loop.status["operator"]["suspendedSeconds"] == 110


def test_job_that_was_suspended_while_the_clock_was_ahead_keeps_its_deadline() -> None:
    loop = removed()
    loop.reconcile()
    loop.spec["deadlines"] = {"total": "5m"}
    resume(loop, -1000)
    loop.reconcile(1100)
    assert loop.phase == "Starting"


def test_job_that_the_batch_service_has_cancelled_is_deleted_after_its_ttl() -> None:
    loop = removed()
    loop.spec["ttl"] = {"afterFinished": "1h", "rayJob": "1h", "cluster": "0s"}
    assert loop.reconcile().requeue_after is None, "it may resume"
    loop.annotations[CANCELLED_AT] = "1"
    assert loop.reconcile(1000).requeue_after == 2600
    assert not loop.reconcile(2599).delete_job
    assert loop.reconcile(1).delete_job


def test_job_that_the_batch_service_has_cancelled_is_kept_without_a_ttl() -> None:
    loop = removed()
    loop.annotations[CANCELLED_AT] = "1"
    actions = loop.reconcile(10**9)
    assert (actions.delete_job, actions.requeue_after) == (False, None)
