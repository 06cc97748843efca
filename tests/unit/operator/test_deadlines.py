"""Deadlines of a job and of its attempts: when they expire, with which cause and message."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.requeue import IDLE_SECONDS, POLL_SECONDS
from batchinference_operator.status.pod_view import PodView
from batchinference_operator.status.timestamps import to_rfc3339
from plugins.messages import Messages
from support.documents.refusals import short
from support.operator.objects import INITIALIZING, OTHER_UID, RUNNING, owner, pod_body, waiting
from support.operator.reconcile_loop import ReconcileLoop

ONCE = {"maxAttempts": 1}


def limited(**deadlines: str) -> ReconcileLoop:
    return ReconcileLoop(deadlines=deadlines, retry=ONCE)


EXPIRED = ("Failed", "DeadlineExceeded")


def state(loop: ReconcileLoop) -> tuple[str, str]:
    return loop.phase, loop.reason


def pods_with_problem(reason: str, message: str) -> tuple[PodView, ...]:
    return (PodView.of(pod_body("job-1-worker", **waiting(reason, message))),)


NOT_STARTED = "no row was finished within deadlines.pending 10m"
RETRIED = {"onCause": {"DeadlineExceeded": "Retry"}}


@pytest.mark.parametrize(
    ("deadline", "seconds", "retry", "rows", "message"),
    [
        ("pending 10m", 600, ONCE, None, f"{NOT_STARTED}: RayJob job-1 is starting its cluster"),
        ("pending 10m", 600, ONCE, 0, f"{NOT_STARTED}: rows are being processed"),
        ("active 1h", 3600, ONCE, 10, "attempt 1 has not ended within deadlines.active 1h"),
        ("total 1h", 3600, RETRIED, 10, "the job has not ended within deadlines.total 1h"),
    ],
    ids=["starting", "no-rows", "active", "total"],
)
def test_job_fails_when_its_deadline_expires(
    deadline: str, seconds: int, retry: dict[str, Any], rows: int | None, message: str
) -> None:
    loop = ReconcileLoop(deadlines=dict([deadline.split()]), retry=retry)
    if rows is None:
        loop.start()
    else:
        loop.run(rows)
    before = loop.phase
    loop.reconcile(seconds - 1)
    assert loop.phase == before
    loop.reconcile(1)
    assert (state(loop), loop.message) == (EXPIRED, message)
    assert loop.attempt["outcome"] == "Failed"


def test_first_row_ends_the_pending_and_starts_the_stall_deadline() -> None:
    pending, stall = limited(pending="10m"), limited(stall="5m")
    pending.run(rows=1)
    stall.start()
    for loop, phase in ((pending, "Running"), (stall, "Starting")):
        loop.reconcile(3600)
        assert loop.phase == phase


def test_active_deadline_applies_to_each_attempt() -> None:
    loop = ReconcileLoop(deadlines={"active": "1h"}, retry={"backoff": {"initial": "0s"}})
    loop.run()
    loop.now = loop.now.replace(minute=50)
    loop.fail()
    loop.remove()
    loop.run()
    loop.reconcile(3599)
    assert loop.phase == "Running"
    loop.reconcile(1)
    assert "attempt 2" in loop.message


def test_stalled_attempt_is_retried(messages: Messages) -> None:
    loop = ReconcileLoop(deadlines={"stall": "5m"})
    loop.run(rows=10)
    loop.reconcile(299)
    assert loop.phase == "Running"
    loop.reconcile(1)
    assert (loop.phase, loop.attempt["cause"]) == ("Retrying", "Stalled")
    messages.check(loop.attempt["message"])


@pytest.mark.parametrize(
    ("deadline", "rows", "pods"),
    [
        ("pending", 0, ()),
        ("stall", 10, ()),
        ("stall", 10, pods_with_problem("ErrImagePull", "no image")),
    ],
    ids=short,
)
def test_timeout_names_the_stage_or_the_pod_problem(
    deadline: str, rows: int, pods: tuple[PodView, ...], messages: Messages
) -> None:
    loop = limited(**{deadline: "5m"})
    loop.run(rows=rows)
    loop.set_report(JobState.RUNNING, rows=rows, stage="embed")
    loop.pods = pods
    loop.reconcile(300)
    messages.check(loop.attempt["message"])


def test_restarted_driver_must_finish_rows_within_the_stall_deadline() -> None:
    """The new driver counts rows from 0. KubeRay submits the driver again after a head is lost."""
    loop = limited(stall="5m")
    loop.run(rows=900)
    loop.set_report(JobState.PREPARING)
    loop.reconcile(200)
    for rows in range(0, 100, 10):
        loop.set_report(JobState.RUNNING, rows=rows)
        loop.reconcile(90)
        assert loop.phase == "Running", rows
    assert (loop.attempt["rows"], loop.status["progress"]["rows"]) == (90, 900)
    loop.reconcile(300)
    assert loop.reason == "Stalled"


def test_fewer_rows_are_no_progress() -> None:
    loop = limited(stall="5m")
    loop.run(rows=900)
    loop.set_report(JobState.RUNNING, rows=100)
    loop.reconcile(200)
    assert loop.phase == "Running"
    loop.reconcile(101)
    assert loop.reason == "Stalled"


def test_restart_of_the_driver_is_no_progress() -> None:
    loop = limited(stall="5m")
    loop.run(rows=900)
    for _ in range(2):
        loop.set_report(JobState.PREPARING)
        loop.reconcile(100)
        loop.set_report(JobState.RUNNING, rows=900)
        loop.reconcile(49)
    loop.reconcile(2)
    assert loop.reason == "Stalled"


@pytest.mark.parametrize(("deadline", "rows"), [("pending", 0), ("stall", 10)])
def test_silent_driver_is_subject_to_the_deadlines(deadline: str, rows: int) -> None:
    loop = limited(**{deadline: "20m"})
    loop.run(rows=rows)
    loop.report = None
    loop.reconcile(1199)
    assert loop.phase in ("Running", "Starting")
    loop.reconcile(1)
    assert loop.attempt["outcome"] == "Failed"
    assert f"deadlines.{deadline}" in loop.attempt["message"]


@pytest.mark.parametrize("deadline", ["pending", "stall"])
@pytest.mark.parametrize("rows", [None, 10])
def test_finalizing_job_has_no_row_deadlines(deadline: str, rows: int | None) -> None:
    loop = limited(**{deadline: "5m"})
    loop.run(rows=rows or 0)
    loop.set_report(JobState.FINALIZING, rows=rows)
    loop.reconcile(299)
    loop.reconcile(3600)
    assert loop.phase == "Finalizing"


def test_total_deadline_excludes_suspension() -> None:
    loop = ReconcileLoop(suspend=True, deadlines={"total": "1h"})
    loop.reconcile()
    loop.spec["suspend"] = False
    loop.reconcile(86_400)
    assert loop.phase == "Planning"
    loop.run()
    loop.reconcile(3599)
    assert loop.phase == "Running"
    loop.reconcile(1)
    assert state(loop) == EXPIRED


def test_total_deadline_applies_while_the_name_is_in_use() -> None:
    loop = limited(total="1h")
    loop.plan()
    loop.ray_job["metadata"]["ownerReferences"] = [owner(OTHER_UID)]
    loop.reconcile()
    assert loop.reason == "NameTaken"
    loop.reconcile(3600)
    assert state(loop) == EXPIRED


def test_total_deadline_applies_while_kuberay_holds_the_ray_job() -> None:
    loop = ReconcileLoop(deadlines={"total": "1h"})
    loop.lose()
    loop.reconcile()
    loop.reconcile(3600)
    assert state(loop) == EXPIRED


@pytest.mark.parametrize("deadline", ["total", "active", "stall"])
def test_final_report_wins_over_any_deadline(deadline: str) -> None:
    loop = limited(**{deadline: "1h"})
    loop.run()
    loop.set_report(JobState.SUCCEEDED, rows=10)
    loop.reconcile(86_400)
    assert loop.phase == "Succeeded"


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
def test_job_is_requeued_at_its_next_deadline(deadlines: dict[str, str], seconds: float) -> None:
    loop = limited(**deadlines)
    loop.plan()
    loop.set_kuberay_status(**INITIALIZING)
    loop.pods = (PodView.of(pod_body()),)
    assert loop.reconcile().requeue_after == seconds


def test_running_job_is_requeued_at_its_deadline() -> None:
    loop = limited(stall="1s")
    loop.run()
    assert loop.reconcile().requeue_after == 1 < POLL_SECONDS


def test_pending_deadline_holds_in_an_attempt_that_resumes() -> None:
    loop = ReconcileLoop(deadlines={"pending": "10m"}, retry={"backoff": {"initial": "0s"}})
    loop.run(rows=900)
    loop.fail()
    loop.remove()
    loop.run(rows=900)
    pod = pod_body("job-2-worker", attempt=2, **waiting("ImagePullBackOff", "no such image"))
    loop.pods = (PodView.of(pod),)
    loop.reconcile()
    assert (state(loop), loop.attempt.get("rows")) == (("Pending", "ImagePull"), None)
    loop.reconcile(600)
    assert loop.attempt["cause"] == "ImagePull"


def test_rows_of_an_attempt_are_its_own() -> None:
    loop = ReconcileLoop(retry={"backoff": {"initial": "0s"}})
    loop.run(rows=900)
    loop.fail()
    loop.remove()
    loop.run(rows=910)
    loop.set_report(JobState.RUNNING, rows=950)
    loop.reconcile(60)
    assert [one.get("rows") for one in loop.status["attempts"]] == [900, 40]
    assert loop.status["progress"]["rows"] == 950
    loop.set_report(JobState.PREPARING)
    loop.reconcile()
    loop.set_report(JobState.RUNNING, rows=960)
    loop.reconcile()
    assert loop.attempt["rows"] == 50, "a driver that starts again counts the attempt's rows, too"


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_time_of_a_hostile_report_is_not_the_end_of_the_job(time: str) -> None:
    loop = ReconcileLoop()
    loop.run()
    loop.set_report(JobState.FAILED, reason="Application", updatedAt=time)
    loop.reconcile(60)
    assert (loop.phase, loop.status["completionTime"]) == ("Failed", to_rfc3339(loop.now))


def test_hostile_time_in_a_ray_job_evades_no_deadline() -> None:
    """The API server accepts this invalid value as a date-time."""
    loop = limited(active="1h")
    loop.run()
    time = "2026-03-01T12:00:00+99:99"
    loop.set_kuberay_status(startTime=time, endTime=time, rayJobInfo={"startTime": time})
    loop.report = None
    loop.reconcile(3600)
    assert state(loop) == EXPIRED


def test_end_of_a_ray_job_in_the_future_delays_no_end() -> None:
    loop = ReconcileLoop(retry={"maxAttempts": 1})
    loop.run()
    loop.report = None
    end = "9999-12-31T23:59:59Z"
    loop.set_kuberay_status(jobStatus="FAILED", jobDeploymentStatus="Failed", endTime=end)
    loop.reconcile(60)
    assert loop.phase == "Failed"


def test_late_first_report_of_an_attempt_shows_its_rows() -> None:
    """The operator was down while the attempt processed rows."""
    loop = ReconcileLoop(deadlines={"pending": "10m"}, retry={"backoff": {"initial": "0s"}})
    loop.run(rows=900)
    loop.fail()
    loop.remove()
    loop.start()
    loop.set_kuberay_status(**RUNNING, rayJobInfo={"startTime": to_rfc3339(loop.now)})
    loop.set_report(JobState.RUNNING, rows=2000)
    loop.reconcile(1200)
    assert (loop.phase, loop.attempt["rows"]) == ("Running", 1100)
