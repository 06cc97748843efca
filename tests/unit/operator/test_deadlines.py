"""When a job has taken too long: what ends then, by which cause, in which words."""

from __future__ import annotations

import pytest

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.ending import POLL_SECONDS
from batchinference_operator.reconcile.looks import IDLE_SECONDS
from batchinference_operator.status.pods import PodView
from support.looks import Looks
from support.operator_objects import INITIALIZING, OTHER_UID, owner, pod_body, waiting

ONCE = {"maxAttempts": 1}


def limited(**deadlines: str) -> Looks:
    return Looks(deadlines=deadlines, retry=ONCE)


# --- pending ----------------------------------------------------------------------------


def test_an_attempt_without_a_row_ends_when_pending_has_passed() -> None:
    looks = limited(pending="10m")
    looks.start()
    looks.look(599)
    assert looks.phase == "Starting"
    looks.look(1)
    assert (looks.phase, looks.reason) == ("Failed", "DeadlineExceeded")
    waits = "RayJob job-1 is starting its cluster"
    assert looks.message == f"no row was finished within deadlines.pending 10m: {waits}"


def test_what_keeps_the_pods_from_starting_is_the_better_cause() -> None:
    looks = limited(pending="10m")
    looks.start()
    stuck = pod_body("job-1-worker", **waiting("ImagePullBackOff", "no such image"))
    looks.pods = (PodView.of(stuck),)
    looks.look(600)
    assert (looks.phase, looks.reason) == ("Failed", "ImagePull")
    assert looks.message.endswith("pending 10m: pod job-1-worker: no such image")


def test_with_the_first_row_pending_is_over() -> None:
    looks = limited(pending="10m")
    looks.run(rows=1)
    looks.look(3600)
    assert looks.phase == "Running"


def test_without_a_row_a_running_driver_is_pending_still() -> None:
    looks = limited(pending="10m")
    looks.run(rows=0)
    looks.look(600)
    assert (looks.phase, looks.reason) == ("Failed", "DeadlineExceeded")


# --- active -----------------------------------------------------------------------------


def test_an_attempt_ends_when_active_has_passed() -> None:
    looks = limited(active="1h")
    looks.run()
    looks.look(3599)
    assert looks.phase == "Running"
    looks.look(1)
    assert (looks.phase, looks.reason) == ("Failed", "DeadlineExceeded")
    assert looks.message == "attempt 1 has not ended within deadlines.active 1h"


def test_each_attempt_has_its_own_time() -> None:
    looks = Looks(deadlines={"active": "1h"}, retry={"backoff": {"initial": "0s"}})
    looks.run()
    looks.now = looks.now.replace(minute=50)
    looks.fail()
    looks.look()
    looks.let_go()
    looks.run()
    looks.look(3599)
    assert looks.phase == "Running"
    looks.look(1)
    assert "attempt 2" in looks.message


# --- stall ------------------------------------------------------------------------------


def test_an_attempt_that_stalls_is_tried_again() -> None:
    looks = Looks(deadlines={"stall": "5m"})
    looks.run(rows=10)
    looks.look(299)
    assert looks.phase == "Running"
    looks.look(1)
    assert (looks.phase, looks.attempt["cause"]) == ("Retrying", "Stalled")
    assert looks.attempt["message"] == (
        "no row was finished for deadlines.stall 5m, since 2026-03-01T12:00:00Z: "
        "rows are being processed"
    )


@pytest.mark.parametrize(("deadline", "rows"), [("pending", 0), ("stall", 10)])
def test_the_stage_that_the_rows_do_not_leave_is_named(deadline: str, rows: int) -> None:
    looks = limited(**{deadline: "5m"})
    looks.run(rows=rows)
    looks.tell(JobState.RUNNING, rows=rows, stage="embed")
    looks.look(300)
    assert looks.attempt["message"].endswith(": they are in stage 'embed'")


def test_what_troubles_the_pods_says_more_than_the_stage() -> None:
    looks = limited(stall="5m")
    looks.run(rows=10)
    looks.tell(JobState.RUNNING, rows=10, stage="embed")
    looks.pods = (PodView.of(pod_body("job-1-worker", **waiting("ErrImagePull", "no image"))),)
    looks.look(300)
    assert looks.attempt["message"].endswith(": pod job-1-worker: no image")


def test_with_each_row_the_time_to_stall_begins_anew() -> None:
    looks = limited(stall="5m")
    looks.run(rows=10)
    for rows in range(11, 20):
        looks.tell(JobState.RUNNING, rows=rows)
        looks.look(299)
        assert looks.phase == "Running"


def test_a_driver_that_begins_anew_has_its_time_from_there() -> None:
    """It counts from nothing: KubeRay submits a job again whose head was lost."""
    looks = limited(stall="5m")
    looks.run(rows=900)
    looks.tell(JobState.PREPARING)
    looks.look(200)
    for rows in range(0, 100, 10):
        looks.tell(JobState.RUNNING, rows=rows)
        looks.look(200)
        assert looks.phase == "Running"
    assert (looks.attempt["rows"], looks.status["progress"]["rows"]) == (90, 900)
    looks.look(300)
    assert looks.reason == "Stalled"


def test_a_driver_that_is_not_heard_has_not_begun_anew() -> None:
    looks = limited(stall="5m")
    looks.run(rows=900)
    looks.said = None
    looks.look(200)
    assert looks.attempt["rows"] == 900


@pytest.mark.parametrize("deadline", ["pending", "stall"])
@pytest.mark.parametrize("rows", [None, 10])
def test_once_all_rows_are_finished_none_is_waited_for(deadline: str, rows: int | None) -> None:
    looks = limited(**{deadline: "5m"})
    looks.run(rows=rows or 0)
    looks.tell(JobState.FINALIZING, rows=rows)
    looks.look(299)
    looks.look(3600)
    assert looks.phase == "Finalizing"


def test_before_the_first_row_nothing_stalls() -> None:
    looks = limited(stall="5m")
    looks.start()
    looks.look(3600)
    assert looks.phase == "Starting"


# --- total ------------------------------------------------------------------------------


def test_a_job_ends_when_its_total_time_has_passed_whatever_attempts_are_left() -> None:
    looks = Looks(deadlines={"total": "1h"}, retry={"onCause": {"DeadlineExceeded": "retry"}})
    looks.run()
    looks.look(3600)
    assert (looks.phase, looks.reason) == ("Failed", "DeadlineExceeded")
    assert looks.message == "the job has not ended within deadlines.total 1h"
    assert looks.attempt["outcome"] == "Failed"


def test_time_for_which_the_job_was_suspended_does_not_count() -> None:
    looks = Looks(suspend=True, deadlines={"total": "1h"})
    looks.look()
    looks.spec["suspend"] = False
    looks.look(86_400)
    assert looks.phase == "Planning"
    looks.run()
    looks.look(3599)
    assert looks.phase == "Running"
    looks.look(1)
    assert (looks.phase, looks.reason) == ("Failed", "DeadlineExceeded")


def test_it_passes_while_the_job_waits_for_a_name() -> None:
    looks = limited(total="1h")
    looks.plan()
    looks.ray_job["metadata"]["ownerReferences"] = [owner(OTHER_UID)]
    looks.look()
    assert looks.reason == "NameTaken"
    looks.look(3600)
    assert (looks.phase, looks.reason) == ("Failed", "DeadlineExceeded")


def test_it_passes_while_kuberay_is_away_and_holds_the_attempt_before() -> None:
    looks = Looks(deadlines={"total": "1h"})
    looks.run()
    looks.fail()
    looks.look()
    looks.look(3600)
    assert (looks.phase, looks.reason) == ("Failed", "DeadlineExceeded")


@pytest.mark.parametrize("deadline", ["total", "active", "stall"])
def test_the_drivers_last_word_stands_before_any_deadline(deadline: str) -> None:
    looks = limited(**{deadline: "1h"})
    looks.run()
    looks.tell(JobState.SUCCEEDED, rows=10)
    looks.look(86_400)
    assert looks.phase == "Succeeded"


# --- when it is looked again ------------------------------------------------------------


@pytest.mark.parametrize(
    ("deadlines", "seconds"),
    [
        ({}, IDLE_SECONDS),
        ({"pending": "10m"}, IDLE_SECONDS),
        ({"pending": "20s"}, 20),
        ({"active": "15s", "pending": "20s"}, 15),
        ({"total": "10s", "active": "15s"}, 10),
        ({"stall": "5s"}, IDLE_SECONDS),
    ],
    ids=["none", "far", "pending", "active", "total", "not-yet"],
)
def test_a_job_is_looked_at_when_its_next_deadline_passes(
    deadlines: dict[str, str], seconds: float
) -> None:
    looks = limited(**deadlines)
    looks.plan()
    looks.play(**INITIALIZING)
    assert looks.look().again_after == seconds


def test_a_running_job_is_looked_at_in_time_too() -> None:
    looks = limited(stall="1s")
    looks.run()
    assert looks.look().again_after == 1 < POLL_SECONDS


def test_a_deadline_may_change_while_the_job_goes_on() -> None:
    looks = limited(active="1h")
    looks.run()
    looks.spec["deadlines"] = {"active": "2h"}
    looks.look(3600)
    assert looks.phase == "Running"
    looks.spec["deadlines"] = {}
    looks.look(36_000)
    assert looks.phase == "Running"
