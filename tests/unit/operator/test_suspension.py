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
from support.looks import Looks
from support.operator_objects import RUNNING, SUCCEEDED, placed, pod_body

PHASES: dict[str, Callable[[Looks], None]] = {
    "Pending": Looks.queue,
    "Planning": Looks.plan,
    "Starting": Looks.start,
    "Running": Looks.run,
    "Finalizing": Looks.finalize,
    "Retrying": Looks.lose,
}
DRIVEN = ("Running", "Finalizing")


def suspended(phase: str = "Running", **spec: object) -> Looks:
    """A job that was suspended in this phase, as far as the status says; its driver has ended."""
    looks = Looks(**spec)
    PHASES[phase](looks)
    assert looks.phase == phase
    looks.spec["suspend"] = True
    looks.said = None
    looks.look()
    if phase in DRIVEN:
        assert [seen.name for seen in looks.look().stop] == ["job-1"]
    return looks


def resume(looks: Looks, seconds: float = 0.0) -> None:
    looks.spec["suspend"] = False
    looks.look(seconds)


@pytest.mark.parametrize("phase", PHASES)
def test_a_job_that_is_suspended_in_any_phase_comes_to_hold_nothing(phase: str) -> None:
    looks = suspended(phase)
    looks.look()
    assert (looks.phase, looks.reason) == ("Suspending", "Suspending")
    assert "deletionTimestamp" in looks.ray_jobs["job-1"]["metadata"]
    looks.let_go()
    assert looks.look(LOOK_SECONDS).again_after is None
    assert (looks.phase, looks.reason) == ("Suspended", "Suspended")
    assert holds(looks.status, "Suspended")
    assert holds(looks.status, "Ready"), "nobody need wait for it"


@pytest.mark.parametrize("phase", PHASES)
def test_and_goes_on_from_there(phase: str) -> None:
    looks = suspended(phase)
    looks.look()
    looks.let_go()
    looks.look()
    resume(looks, 3600)
    assert (looks.phase, looks.status["attempt"]) == ("Planning", 2)
    assert not holds(looks.status, "Suspended")
    looks.run()
    looks.tell(JobState.SUCCEEDED)
    looks.look()
    assert looks.phase == "Succeeded"


def test_the_status_says_so_before_anything_is_taken_away() -> None:
    looks = Looks(suspend=False)
    looks.run()
    looks.spec["suspend"] = True
    actions = looks.look()
    assert (actions.remove, actions.again_after) == ((), 0)
    assert looks.attempt["outcome"] == "Suspended"


def test_a_driver_commits_what_is_under_way_before_its_ray_job_is_taken_away() -> None:
    looks = suspended("Starting")
    assert looks.look().remove, "there is no driver yet"
    looks = Looks()
    looks.run()
    looks.spec["suspend"], looks.said = True, None
    looks.look()
    actions = looks.look(1)
    assert [seen.name for seen in actions.stop] == ["job-1"]
    assert (actions.remove, actions.again_after) == ((), STOP_LOOK_SECONDS)
    actions = looks.look(1)
    assert (actions.stop, [seen.name for seen in actions.remove]) == ((), ["job-1"])


def test_a_driver_that_does_not_end_is_not_waited_for_for_ever() -> None:
    looks = Looks()
    looks.run()
    looks.spec["suspend"], looks.said = True, None
    looks.look()
    for _ in range(2):
        looks.look(STOP_SECONDS / 2 - 1)
        looks.ray_jobs["job-1"]["status"]["jobStatus"] = "RUNNING"
    actions = looks.look(2)
    assert (actions.stop, [seen.name for seen in actions.remove]) == ((), ["job-1"])


def test_a_job_that_has_succeeded_is_not_suspended_though_its_report_was_not_heard_yet() -> None:
    looks = Looks()
    looks.run()
    looks.said = None
    looks.play(**{**SUCCEEDED, "endTime": stamp(looks.now)})
    looks.spec["suspend"] = True
    looks.look()
    assert looks.phase == "Finalizing"
    looks.tell(JobState.SUCCEEDED, rows=10)
    looks.look(2)
    assert looks.phase == "Succeeded"


def test_a_suspended_attempt_is_no_failure() -> None:
    looks = suspended()
    assert "cause" not in looks.attempt
    assert looks.status["failedAttempts"] == 0


def test_a_job_that_is_created_suspended_makes_nothing() -> None:
    looks = Looks(suspend=True)
    actions = looks.look()
    assert (actions.create, looks.phase) == ((), "Suspended")
    assert "attempts" not in looks.status
    resume(looks)
    assert (looks.phase, looks.status["attempt"]) == ("Planning", 1)


def test_a_ray_job_that_was_made_before_the_status_said_so_goes_too() -> None:
    looks = Looks()
    looks.plan()
    looks.status, looks.spec["suspend"] = {}, True
    assert looks.look().remove == (), "it is taken away once the status says that it was there"
    assert (looks.phase, looks.attempt["outcome"]) == ("Suspending", "Suspended")
    assert [seen.name for seen in looks.look().remove] == ["job-1"]


def test_a_ray_job_that_goes_by_a_suspension_taken_back_was_deleted_by_nobody_else() -> None:
    looks = Looks()
    looks.plan()
    looks.status, looks.spec["suspend"] = {}, True
    looks.look()
    assert [seen.name for seen in looks.look().remove] == ["job-1"]
    # and of the deletion nothing is heard yet
    looks.ray_jobs["job-1"]["metadata"].pop("deletionTimestamp")
    looks.spec["suspend"] = False
    looks.look()
    looks.ray_jobs.clear()
    looks.look(10)
    assert (looks.phase, looks.status["failedAttempts"]) == ("Planning", 0)


def test_while_kuberay_is_away_the_job_is_suspending() -> None:
    looks = suspended()
    looks.look()
    for _ in range(3):
        assert looks.look(1000).again_after == LOOK_SECONDS
        assert looks.phase == "Suspending"


def test_it_is_suspending_as_long_as_a_pod_is_there() -> None:
    looks = suspended()
    looks.look()
    looks.let_go()
    looks.pods = (PodView.of(pod_body(**placed())),)
    looks.look()
    assert looks.phase == "Suspending"
    looks.pods = (PodView.of(pod_body(phase="Failed")),)
    looks.look()
    assert looks.phase == "Suspended"


def test_a_removal_that_broke_off_is_completed_though_kuberay_is_away() -> None:
    """Its RayJob is marked as deleted, and its cluster is not."""
    looks = suspended()
    looks.look()
    looks.ray_jobs["job-1"]["status"]["rayClusterName"] = "job-1-cluster"
    held = pod_body(**placed())
    held["metadata"]["labels"]["ray.io/cluster"] = "job-1-cluster"
    looks.pods = (PodView.of(held),)
    assert [seen.name for seen in looks.look(5).remove] == ["job-1"]
    looks.pods = ()
    assert looks.look(5).remove == ()


def test_a_job_that_kueue_takes_back_is_suspended_though_its_driver_says_that_it_failed() -> None:
    looks = Looks(cluster={"queue": "gpu"})
    looks.run()
    looks.ray_jobs["job-1"]["metadata"]["labels"] = {QUEUE_LABEL: "gpu"}
    looks.ray_jobs["job-1"]["spec"]["suspend"] = True
    looks.tell(JobState.FAILED, reason="Interrupted")
    looks.look()
    looks.spec["suspend"] = True
    looks.look()
    assert looks.phase == "Suspending"


def test_pods_of_which_no_watch_has_told_yet_are_held() -> None:
    looks = suspended()
    looks.look()
    looks.let_go()
    looks.unheard_pods = True
    looks.look()
    assert looks.phase == "Suspending"
    looks.unheard_pods = False
    looks.look()
    assert looks.phase == "Suspended"


def test_the_next_attempt_waits_for_pods_of_the_one_before_but_not_for_ever() -> None:
    looks = suspended()
    looks.look()
    looks.let_go()
    looks.pods = (PodView.of(pod_body(**placed())),)
    resume(looks)
    assert looks.look(5).create == ()
    assert looks.look(LINGER_SECONDS).create != ()


def test_resumed_too_early_it_waits_until_nothing_is_left_of_the_attempt() -> None:
    looks = suspended()
    looks.look()
    resume(looks)
    actions = looks.look()
    assert (actions.create, actions.again_after) == ((), POLL_SECONDS)
    looks.let_go()
    looks.look()
    assert (looks.phase, looks.status["attempt"]) == ("Planning", 2)


def test_the_drivers_last_word_stands_before_the_suspension() -> None:
    looks = Looks()
    looks.run()
    looks.spec["suspend"] = True
    looks.tell(JobState.SUCCEEDED)
    looks.look()
    assert looks.phase == "Succeeded"


def test_a_failure_that_is_known_is_a_failure_and_the_next_attempt_waits_for_resume() -> None:
    looks = Looks(suspend=False, retry={"backoff": {"initial": "0s"}})
    looks.run()
    looks.spec["suspend"] = True
    looks.fail()
    assert (looks.phase, looks.attempt["outcome"]) == ("Retrying", "Failed")
    looks.look()
    looks.let_go()
    looks.look()
    assert (looks.phase, looks.status["failedAttempts"]) == ("Suspended", 1)


def test_a_resumed_job_waits_for_no_backoff() -> None:
    looks = Looks(suspend=False, retry={"backoff": {"initial": "10m"}})
    looks.run()
    looks.fail()
    looks.spec["suspend"] = True
    looks.look()
    looks.let_go()
    looks.look()
    looks.spec["suspend"] = False
    looks.look(1)
    assert (looks.phase, looks.attempt["number"]) == ("Planning", 2)


def test_a_cluster_that_is_kept_for_its_report_is_released() -> None:
    looks = Looks()
    looks.run()
    looks.spec["suspend"], looks.said = True, None
    looks.play(**{**RUNNING, "jobStatus": "FAILED", "jobDeploymentStatus": "Failed"})
    looks.look()
    assert [seen.name for seen in looks.look().release] == ["job-1"]
    assert looks.phase == "Suspended"


def test_a_ray_job_that_ends_meanwhile_holds_nothing_though_kuberay_is_away() -> None:
    """Nobody but the operator ends its cluster then."""
    looks = suspended()
    looks.play(**{**RUNNING, "jobStatus": "FAILED", "jobDeploymentStatus": "Failed"})
    looks.play(rayClusterName="job-1-cluster")
    held = pod_body(**placed())
    held["metadata"]["labels"]["ray.io/cluster"] = "job-1-cluster"
    looks.pods = (PodView.of(held),)
    actions = looks.look()
    assert [seen.cluster for seen in actions.release] == ["job-1-cluster"]
    assert (looks.phase, actions.again_after) == ("Suspending", LOOK_SECONDS)
    looks.pods = ()
    assert looks.look(LOOK_SECONDS).release == (), "once"
    assert looks.phase == "Suspended"


def test_a_finished_job_is_not_suspended() -> None:
    looks = Looks()
    looks.run()
    looks.tell(JobState.SUCCEEDED)
    looks.look()
    looks.spec["suspend"] = True
    assert looks.look().status is None


# --- the time ---------------------------------------------------------------------------


def test_the_time_of_all_suspensions_is_counted() -> None:
    looks = Looks(suspend=True)
    looks.look()
    resume(looks, 100)
    assert looks.status["suspendedSeconds"] == 100
    looks.start()
    looks.spec["suspend"] = True
    looks.look(50)
    looks.look()
    looks.let_go()
    looks.look()
    resume(looks, 200)
    assert looks.status["suspendedSeconds"] == 300


def test_time_before_something_came_to_light_is_counted_too() -> None:
    looks = Looks(suspend=True)
    looks.look()
    looks.pods = (PodView.of(pod_body(**placed())),)
    looks.look(100)
    assert looks.phase == "Suspending"
    looks.pods = ()
    looks.look()
    resume(looks, 10)
    assert looks.status["suspendedSeconds"] == 110
