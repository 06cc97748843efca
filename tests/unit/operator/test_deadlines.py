"""When a job has taken too long: what ends then, by which cause, in which words."""

from __future__ import annotations

import pytest

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.ending import POLL_SECONDS
from batchinference_operator.reconcile.looks import IDLE_SECONDS
from batchinference_operator.status.pods import PodView
from support.operator.objects import INITIALIZING, OTHER_UID, owner, pod_body, waiting
from support.operator.reconcile_loop import ReconcileLoop

ONCE = {"maxAttempts": 1}


def limited(**deadlines: str) -> ReconcileLoop:
    return ReconcileLoop(deadlines=deadlines, retry=ONCE)


# --- pending ----------------------------------------------------------------------------


def test_an_attempt_without_a_row_ends_when_pending_has_passed() -> None:
    loop = limited(pending="10m")
    loop.start()
    loop.reconcile(599)
    assert loop.phase == "Starting"
    loop.reconcile(1)
    assert (loop.phase, loop.reason) == ("Failed", "DeadlineExceeded")
    waits = "RayJob job-1 is starting its cluster"
    assert loop.message == f"no row was finished within deadlines.pending 10m: {waits}"


def test_what_keeps_the_pods_from_starting_is_the_better_cause() -> None:
    loop = limited(pending="10m")
    loop.start()
    stuck = pod_body("job-1-worker", **waiting("ImagePullBackOff", "no such image"))
    loop.pods = (PodView.of(stuck),)
    loop.reconcile(600)
    assert (loop.phase, loop.reason) == ("Failed", "ImagePull")
    assert loop.message.endswith("pending 10m: pod job-1-worker: no such image")


def test_with_the_first_row_pending_is_over() -> None:
    loop = limited(pending="10m")
    loop.run(rows=1)
    loop.reconcile(3600)
    assert loop.phase == "Running"


def test_without_a_row_a_running_driver_is_pending_still() -> None:
    loop = limited(pending="10m")
    loop.run(rows=0)
    loop.reconcile(600)
    assert (loop.phase, loop.reason) == ("Failed", "DeadlineExceeded")


# --- active -----------------------------------------------------------------------------


def test_an_attempt_ends_when_active_has_passed() -> None:
    loop = limited(active="1h")
    loop.run()
    loop.reconcile(3599)
    assert loop.phase == "Running"
    loop.reconcile(1)
    assert (loop.phase, loop.reason) == ("Failed", "DeadlineExceeded")
    assert loop.message == "attempt 1 has not ended within deadlines.active 1h"


def test_each_attempt_has_its_own_time() -> None:
    loop = ReconcileLoop(deadlines={"active": "1h"}, retry={"backoff": {"initial": "0s"}})
    loop.run()
    loop.now = loop.now.replace(minute=50)
    loop.fail()
    loop.reconcile()
    loop.finalize_deletions()
    loop.run()
    loop.reconcile(3599)
    assert loop.phase == "Running"
    loop.reconcile(1)
    assert "attempt 2" in loop.message


# --- stall ------------------------------------------------------------------------------


def test_an_attempt_that_stalls_is_tried_again() -> None:
    loop = ReconcileLoop(deadlines={"stall": "5m"})
    loop.run(rows=10)
    loop.reconcile(299)
    assert loop.phase == "Running"
    loop.reconcile(1)
    assert (loop.phase, loop.attempt["cause"]) == ("Retrying", "Stalled")
    assert loop.attempt["message"] == (
        "no row was finished for deadlines.stall 5m, since 2026-03-01T12:00:00Z: "
        "rows are being processed"
    )


@pytest.mark.parametrize(("deadline", "rows"), [("pending", 0), ("stall", 10)])
def test_the_stage_that_the_rows_do_not_leave_is_named(deadline: str, rows: int) -> None:
    loop = limited(**{deadline: "5m"})
    loop.run(rows=rows)
    loop.set_report(JobState.RUNNING, rows=rows, stage="embed")
    loop.reconcile(300)
    assert loop.attempt["message"].endswith(": they are in stage 'embed'")


def test_what_troubles_the_pods_says_more_than_the_stage() -> None:
    loop = limited(stall="5m")
    loop.run(rows=10)
    loop.set_report(JobState.RUNNING, rows=10, stage="embed")
    loop.pods = (PodView.of(pod_body("job-1-worker", **waiting("ErrImagePull", "no image"))),)
    loop.reconcile(300)
    assert loop.attempt["message"].endswith(": pod job-1-worker: no image")


def test_with_each_row_the_time_to_stall_begins_anew() -> None:
    loop = limited(stall="5m")
    loop.run(rows=10)
    for rows in range(11, 20):
        loop.set_report(JobState.RUNNING, rows=rows)
        loop.reconcile(299)
        assert loop.phase == "Running"


def test_a_driver_that_begins_anew_has_its_time_from_there() -> None:
    """It counts from nothing: KubeRay submits a job again whose head was lost."""
    loop = limited(stall="5m")
    loop.run(rows=900)
    loop.set_report(JobState.PREPARING)
    loop.reconcile(200)
    for rows in range(0, 100, 10):
        loop.set_report(JobState.RUNNING, rows=rows)
        loop.reconcile(200)
        assert loop.phase == "Running"
    assert (loop.attempt["rows"], loop.status["progress"]["rows"]) == (90, 900)
    loop.reconcile(300)
    assert loop.reason == "Stalled"


def test_a_driver_that_is_not_heard_has_not_begun_anew() -> None:
    loop = limited(stall="5m")
    loop.run(rows=900)
    loop.report = None
    loop.reconcile(200)
    assert loop.attempt["rows"] == 900


@pytest.mark.parametrize("deadline", ["pending", "stall"])
@pytest.mark.parametrize("rows", [None, 10])
def test_once_all_rows_are_finished_none_is_waited_for(deadline: str, rows: int | None) -> None:
    loop = limited(**{deadline: "5m"})
    loop.run(rows=rows or 0)
    loop.set_report(JobState.FINALIZING, rows=rows)
    loop.reconcile(299)
    loop.reconcile(3600)
    assert loop.phase == "Finalizing"


def test_before_the_first_row_nothing_stalls() -> None:
    loop = limited(stall="5m")
    loop.start()
    loop.reconcile(3600)
    assert loop.phase == "Starting"


# --- total ------------------------------------------------------------------------------


def test_total_deadline_ends_the_job_despite_remaining_attempts() -> None:
    loop = ReconcileLoop(
        deadlines={"total": "1h"}, retry={"onCause": {"DeadlineExceeded": "retry"}}
    )
    loop.run()
    loop.reconcile(3600)
    assert (loop.phase, loop.reason) == ("Failed", "DeadlineExceeded")
    assert loop.message == "the job has not ended within deadlines.total 1h"
    assert loop.attempt["outcome"] == "Failed"


def test_time_for_which_the_job_was_suspended_does_not_count() -> None:
    loop = ReconcileLoop(suspend=True, deadlines={"total": "1h"})
    loop.reconcile()
    loop.spec["suspend"] = False
    loop.reconcile(86_400)
    assert loop.phase == "Planning"
    loop.run()
    loop.reconcile(3599)
    assert loop.phase == "Running"
    loop.reconcile(1)
    assert (loop.phase, loop.reason) == ("Failed", "DeadlineExceeded")


def test_it_passes_while_the_job_waits_for_a_name() -> None:
    loop = limited(total="1h")
    loop.plan()
    loop.ray_job["metadata"]["ownerReferences"] = [owner(OTHER_UID)]
    loop.reconcile()
    assert loop.reason == "NameTaken"
    loop.reconcile(3600)
    assert (loop.phase, loop.reason) == ("Failed", "DeadlineExceeded")


def test_backoff_passes_while_kuberay_holds_the_old_attempt() -> None:
    loop = ReconcileLoop(deadlines={"total": "1h"})
    loop.run()
    loop.fail()
    loop.reconcile()
    loop.reconcile(3600)
    assert (loop.phase, loop.reason) == ("Failed", "DeadlineExceeded")


@pytest.mark.parametrize("deadline", ["total", "active", "stall"])
def test_the_drivers_last_word_stands_before_any_deadline(deadline: str) -> None:
    loop = limited(**{deadline: "1h"})
    loop.run()
    loop.set_report(JobState.SUCCEEDED, rows=10)
    loop.reconcile(86_400)
    assert loop.phase == "Succeeded"


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
    loop = limited(**deadlines)
    loop.plan()
    loop.set_kuberay_status(**INITIALIZING)
    assert loop.reconcile().again_after == seconds


def test_a_running_job_is_looked_at_in_time_too() -> None:
    loop = limited(stall="1s")
    loop.run()
    assert loop.reconcile().again_after == 1 < POLL_SECONDS


def test_a_deadline_may_change_while_the_job_goes_on() -> None:
    loop = limited(active="1h")
    loop.run()
    loop.spec["deadlines"] = {"active": "2h"}
    loop.reconcile(3600)
    assert loop.phase == "Running"
    loop.spec["deadlines"] = {}
    loop.reconcile(36_000)
    assert loop.phase == "Running"
