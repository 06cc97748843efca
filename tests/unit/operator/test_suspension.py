"""A suspended job: it holds nothing, at whatever moment it is suspended, and goes on later."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from batchinference.rendering import QUEUE_LABEL
from batchinference.spec.lifecycle import STOP_SECONDS
from batchinference.spec.report import JobState
from batchinference_operator.reconcile.beginning import LINGER_SECONDS
from batchinference_operator.reconcile.clock import stamp
from batchinference_operator.reconcile.ending import POLL_SECONDS
from batchinference_operator.reconcile.suspension import LOOK_SECONDS, STOP_LOOK_SECONDS
from batchinference_operator.status.conditions import holds
from batchinference_operator.status.pods import PodView
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


def suspended(phase: str = "Running", **spec: object) -> ReconcileLoop:
    """A job that was suspended in this phase, as far as the status says; its driver has ended."""
    loop = ReconcileLoop(**spec)
    PHASES[phase](loop)
    assert loop.phase == phase
    loop.spec["suspend"] = True
    loop.report = None
    loop.reconcile()
    if phase in DRIVEN:
        assert [seen.name for seen in loop.reconcile().stop] == ["job-1"]
    return loop


def resume(loop: ReconcileLoop, seconds: float = 0.0) -> None:
    loop.spec["suspend"] = False
    loop.reconcile(seconds)


@pytest.mark.parametrize("phase", PHASES)
def test_suspension_in_any_phase_frees_everything(phase: str) -> None:
    loop = suspended(phase)
    loop.reconcile()
    assert (loop.phase, loop.reason) == ("Suspending", "Suspending")
    assert "deletionTimestamp" in loop.ray_jobs["job-1"]["metadata"]
    loop.finalize_deletions()
    assert loop.reconcile(LOOK_SECONDS).again_after is None
    assert (loop.phase, loop.reason) == ("Suspended", "Suspended")
    assert holds(loop.status, "Suspended")
    assert holds(loop.status, "Ready"), "nobody need wait for it"


@pytest.mark.parametrize("phase", PHASES)
def test_and_goes_on_from_there(phase: str) -> None:
    loop = suspended(phase)
    loop.reconcile()
    loop.finalize_deletions()
    loop.reconcile()
    resume(loop, 3600)
    assert (loop.phase, loop.status["attempt"]) == ("Planning", 2)
    assert not holds(loop.status, "Suspended")
    loop.run()
    loop.set_report(JobState.SUCCEEDED)
    loop.reconcile()
    assert loop.phase == "Succeeded"


def test_the_status_says_so_before_anything_is_taken_away() -> None:
    loop = ReconcileLoop(suspend=False)
    loop.run()
    loop.spec["suspend"] = True
    actions = loop.reconcile()
    assert (actions.remove, actions.again_after) == ((), 0)
    assert loop.attempt["outcome"] == "Suspended"


def test_driver_is_stopped_before_its_ray_job_is_removed() -> None:
    loop = suspended("Starting")
    assert loop.reconcile().remove, "there is no driver yet"
    loop = ReconcileLoop()
    loop.run()
    loop.spec["suspend"], loop.report = True, None
    loop.reconcile()
    actions = loop.reconcile(1)
    assert [seen.name for seen in actions.stop] == ["job-1"]
    assert (actions.remove, actions.again_after) == ((), STOP_LOOK_SECONDS)
    actions = loop.reconcile(1)
    assert (actions.stop, [seen.name for seen in actions.remove]) == ((), ["job-1"])


def test_a_driver_that_does_not_end_is_not_waited_for_for_ever() -> None:
    loop = ReconcileLoop()
    loop.run()
    loop.spec["suspend"], loop.report = True, None
    loop.reconcile()
    for _ in range(2):
        loop.reconcile(STOP_SECONDS / 2 - 1)
        loop.ray_jobs["job-1"]["status"]["jobStatus"] = "RUNNING"
    actions = loop.reconcile(2)
    assert (actions.stop, [seen.name for seen in actions.remove]) == ((), ["job-1"])


def test_succeeded_job_is_not_suspended_before_its_report() -> None:
    loop = ReconcileLoop()
    loop.run()
    loop.report = None
    loop.set_kuberay_status(**{**SUCCEEDED, "endTime": stamp(loop.now)})
    loop.spec["suspend"] = True
    loop.reconcile()
    assert loop.phase == "Finalizing"
    loop.set_report(JobState.SUCCEEDED, rows=10)
    loop.reconcile(2)
    assert loop.phase == "Succeeded"


def test_a_suspended_attempt_is_no_failure() -> None:
    loop = suspended()
    assert "cause" not in loop.attempt
    assert loop.status["failedAttempts"] == 0


def test_a_job_that_is_created_suspended_makes_nothing() -> None:
    loop = ReconcileLoop(suspend=True)
    actions = loop.reconcile()
    assert (actions.create, loop.phase) == ((), "Suspended")
    assert "attempts" not in loop.status
    resume(loop)
    assert (loop.phase, loop.status["attempt"]) == ("Planning", 1)


def test_unrecorded_ray_job_is_removed_too() -> None:
    loop = ReconcileLoop()
    loop.plan()
    loop.status, loop.spec["suspend"] = {}, True
    assert loop.reconcile().remove == (), "it is taken away once the status says that it was there"
    assert (loop.phase, loop.attempt["outcome"]) == ("Suspending", "Suspended")
    assert [seen.name for seen in loop.reconcile().remove] == ["job-1"]


def test_withdrawn_suspension_is_not_a_deleted_ray_job() -> None:
    loop = ReconcileLoop()
    loop.plan()
    loop.status, loop.spec["suspend"] = {}, True
    loop.reconcile()
    assert [seen.name for seen in loop.reconcile().remove] == ["job-1"]
    # and of the deletion nothing is heard yet
    loop.ray_jobs["job-1"]["metadata"].pop("deletionTimestamp")
    loop.spec["suspend"] = False
    loop.reconcile()
    loop.ray_jobs.clear()
    loop.reconcile(10)
    assert (loop.phase, loop.status["failedAttempts"]) == ("Planning", 0)


def test_while_kuberay_is_away_the_job_is_suspending() -> None:
    loop = suspended()
    loop.reconcile()
    for _ in range(3):
        assert loop.reconcile(1000).again_after == LOOK_SECONDS
        assert loop.phase == "Suspending"


def test_it_is_suspending_as_long_as_a_pod_is_there() -> None:
    loop = suspended()
    loop.reconcile()
    loop.finalize_deletions()
    loop.pods = (PodView.of(pod_body(**placed())),)
    loop.reconcile()
    assert loop.phase == "Suspending"
    loop.pods = (PodView.of(pod_body(phase="Failed")),)
    loop.reconcile()
    assert loop.phase == "Suspended"


def test_interrupted_removal_is_completed_without_kuberay() -> None:
    """Its RayJob is marked as deleted, and its cluster is not."""
    loop = suspended()
    loop.reconcile()
    loop.ray_jobs["job-1"]["status"]["rayClusterName"] = "job-1-cluster"
    held = pod_body(**placed())
    held["metadata"]["labels"]["ray.io/cluster"] = "job-1-cluster"
    loop.pods = (PodView.of(held),)
    assert [seen.name for seen in loop.reconcile(5).remove] == ["job-1"]
    loop.pods = ()
    assert loop.reconcile(5).remove == ()


def test_eviction_by_kueue_wins_over_a_failed_report() -> None:
    loop = ReconcileLoop(cluster={"queue": "gpu"})
    loop.run()
    loop.ray_jobs["job-1"]["metadata"]["labels"] = {QUEUE_LABEL: "gpu"}
    loop.ray_jobs["job-1"]["spec"]["suspend"] = True
    loop.set_report(JobState.FAILED, reason="Interrupted")
    loop.reconcile()
    loop.spec["suspend"] = True
    loop.reconcile()
    assert loop.phase == "Suspending"


def test_pods_of_which_no_watch_has_told_yet_are_held() -> None:
    loop = suspended()
    loop.reconcile()
    loop.finalize_deletions()
    loop.unheard_pods = True
    loop.reconcile()
    assert loop.phase == "Suspending"
    loop.unheard_pods = False
    loop.reconcile()
    assert loop.phase == "Suspended"


def test_retry_waits_for_old_pods_for_a_limited_time() -> None:
    loop = suspended()
    loop.reconcile()
    loop.finalize_deletions()
    loop.pods = (PodView.of(pod_body(**placed())),)
    resume(loop)
    assert loop.reconcile(5).create == ()
    assert loop.reconcile(LINGER_SECONDS).create != ()


def test_early_resume_waits_for_the_old_attempt_to_go() -> None:
    loop = suspended()
    loop.reconcile()
    resume(loop)
    actions = loop.reconcile()
    assert (actions.create, actions.again_after) == ((), POLL_SECONDS)
    loop.finalize_deletions()
    loop.reconcile()
    assert (loop.phase, loop.status["attempt"]) == ("Planning", 2)


def test_the_drivers_last_word_stands_before_the_suspension() -> None:
    loop = ReconcileLoop()
    loop.run()
    loop.spec["suspend"] = True
    loop.set_report(JobState.SUCCEEDED)
    loop.reconcile()
    assert loop.phase == "Succeeded"


def test_failure_before_suspension_counts_and_waits_for_resume() -> None:
    loop = ReconcileLoop(suspend=False, retry={"backoff": {"initial": "0s"}})
    loop.run()
    loop.spec["suspend"] = True
    loop.fail()
    assert (loop.phase, loop.attempt["outcome"]) == ("Retrying", "Failed")
    loop.reconcile()
    loop.finalize_deletions()
    loop.reconcile()
    assert (loop.phase, loop.status["failedAttempts"]) == ("Suspended", 1)


def test_a_resumed_job_waits_for_no_backoff() -> None:
    loop = ReconcileLoop(suspend=False, retry={"backoff": {"initial": "10m"}})
    loop.run()
    loop.fail()
    loop.spec["suspend"] = True
    loop.reconcile()
    loop.finalize_deletions()
    loop.reconcile()
    loop.spec["suspend"] = False
    loop.reconcile(1)
    assert (loop.phase, loop.attempt["number"]) == ("Planning", 2)


def test_a_cluster_that_is_kept_for_its_report_is_released() -> None:
    loop = ReconcileLoop()
    loop.run()
    loop.spec["suspend"], loop.report = True, None
    loop.set_kuberay_status(**{**RUNNING, "jobStatus": "FAILED", "jobDeploymentStatus": "Failed"})
    loop.reconcile()
    assert [seen.name for seen in loop.reconcile().release] == ["job-1"]
    assert loop.phase == "Suspended"


def test_ended_ray_job_frees_its_turn_while_kuberay_is_away() -> None:
    """Nobody but the operator ends its cluster then."""
    loop = suspended()
    loop.set_kuberay_status(**{**RUNNING, "jobStatus": "FAILED", "jobDeploymentStatus": "Failed"})
    loop.set_kuberay_status(rayClusterName="job-1-cluster")
    held = pod_body(**placed())
    held["metadata"]["labels"]["ray.io/cluster"] = "job-1-cluster"
    loop.pods = (PodView.of(held),)
    actions = loop.reconcile()
    assert [seen.cluster for seen in actions.release] == ["job-1-cluster"]
    assert (loop.phase, actions.again_after) == ("Suspending", LOOK_SECONDS)
    loop.pods = ()
    assert loop.reconcile(LOOK_SECONDS).release == (), "once"
    assert loop.phase == "Suspended"


def test_a_finished_job_is_not_suspended() -> None:
    loop = ReconcileLoop()
    loop.run()
    loop.set_report(JobState.SUCCEEDED)
    loop.reconcile()
    loop.spec["suspend"] = True
    assert loop.reconcile().status is None


# --- the time ---------------------------------------------------------------------------


def test_the_time_of_all_suspensions_is_counted() -> None:
    loop = ReconcileLoop(suspend=True)
    loop.reconcile()
    resume(loop, 100)
    assert loop.status["suspendedSeconds"] == 100
    loop.start()
    loop.spec["suspend"] = True
    loop.reconcile(50)
    loop.reconcile()
    loop.finalize_deletions()
    loop.reconcile()
    resume(loop, 200)
    assert loop.status["suspendedSeconds"] == 300


def test_time_before_something_came_to_light_is_counted_too() -> None:
    loop = ReconcileLoop(suspend=True)
    loop.reconcile()
    loop.pods = (PodView.of(pod_body(**placed())),)
    loop.reconcile(100)
    assert loop.phase == "Suspending"
    loop.pods = ()
    loop.reconcile()
    resume(loop, 10)
    assert loop.status["suspendedSeconds"] == 110
