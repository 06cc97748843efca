"""Attempts at a job: what begins one, what stands in the status of it, what follows its failure."""

from __future__ import annotations

from datetime import timedelta

import pytest

from batchinference.rendering import Names
from batchinference.spec.causes import Cause
from batchinference.spec.report import JobState
from batchinference_operator.reconcile.cleanup import END_SECONDS
from batchinference_operator.reconcile.clock import stamp
from batchinference_operator.reconcile.ending import POLL_SECONDS
from batchinference_operator.status.attempts import MAX_ATTEMPTS, closed, failed, opened
from support.operator.objects import OTHER_UID, RUNNING, SUCCEEDED, owner
from support.operator.reconcile_loop import ReconcileLoop

AT_ONCE = {"maxAttempts": 3, "backoff": {"initial": "0s"}}


def failed_once(**retry: object) -> ReconcileLoop:
    """A job whose first attempt was lost with its node."""
    loop = ReconcileLoop(retry={**AT_ONCE, **retry})
    loop.run()
    loop.fail()
    return loop


# --- the first one ----------------------------------------------------------------------


def test_a_planned_attempt_has_its_number_and_its_ray_job() -> None:
    loop = ReconcileLoop()
    loop.plan()
    assert loop.phase == "Planning"
    assert loop.status["attempts"] == [{"number": 1, "rayJobName": "job-1"}]
    assert (loop.status["attempt"], loop.status["rayJobName"]) == (1, "job-1")


def test_it_begins_at_the_look_that_sees_its_ray_job() -> None:
    loop = ReconcileLoop()
    loop.start()
    assert loop.attempt["startTime"] == "2026-03-01T12:00:00Z"
    assert loop.status["startTime"] == "2026-03-01T12:00:00Z"


def test_the_rows_of_an_attempt_are_those_of_its_last_driver() -> None:
    loop = ReconcileLoop()
    loop.run(rows=10)
    loop.set_report(JobState.RUNNING, rows=4)
    loop.reconcile(2)
    assert loop.attempt["rows"] == 4


def test_the_last_report_counts_the_last_rows() -> None:
    loop = ReconcileLoop()
    loop.run(rows=10)
    loop.set_report(JobState.SUCCEEDED, rows=25)
    loop.reconcile(2)
    assert loop.attempt["rows"] == 25


def test_an_attempt_that_succeeds_says_so() -> None:
    loop = ReconcileLoop()
    loop.run()
    loop.set_report(JobState.SUCCEEDED)
    loop.reconcile(60)
    assert loop.attempt["outcome"] == "Succeeded"
    assert loop.attempt["completionTime"] == "2026-03-01T12:01:00Z"
    assert "cause" not in loop.attempt
    assert loop.status["failedAttempts"] == 0


# --- failure ----------------------------------------------------------------------------


def test_a_failed_attempt_keeps_its_cause_and_its_words() -> None:
    loop = failed_once()
    assert loop.attempt["outcome"] == "Failed"
    assert (loop.attempt["cause"], loop.attempt["message"]) == ("NodeLost", "in its words")
    assert loop.status["failedAttempts"] == 1


def test_a_cause_that_is_retried_leads_to_retrying() -> None:
    loop = failed_once()
    assert (loop.phase, loop.reason) == ("Retrying", "Retrying")
    assert loop.message == "attempt 1 failed: NodeLost: in its words"
    assert "completionTime" not in loop.status


def test_failed_attempt_is_removed_after_its_end_is_written() -> None:
    loop = ReconcileLoop(retry=AT_ONCE)
    loop.run()
    assert loop.fail().remove == ()
    assert [seen.name for seen in loop.reconcile().remove] == ["job-1"]


def test_what_it_holds_is_looked_after_soon_however_long_the_pause() -> None:
    loop = ReconcileLoop(retry={"backoff": {"initial": "1h", "max": "1h"}})
    loop.run()
    assert loop.fail().again_after == 0
    assert loop.reconcile().again_after == POLL_SECONDS


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED])
def test_the_end_of_a_job_is_looked_after_by_no_event_alone(state: JobState) -> None:
    loop = ReconcileLoop(retry={"maxAttempts": 1})
    loop.run()
    loop.set_report(state, message="in its words")
    assert loop.reconcile().again_after == 0
    assert loop.reconcile().again_after == END_SECONDS


def test_retry_waits_until_the_old_attempt_is_gone() -> None:
    loop = failed_once()
    loop.reconcile()
    for _ in range(3):
        actions = loop.reconcile(1000)
        assert (actions.create, actions.again_after) == ((), POLL_SECONDS), "KubeRay is away"
    loop.finalize_deletions()
    assert [body["metadata"]["name"] for body in loop.reconcile().create][-1] == "job-2"
    assert loop.phase == "Planning"


def test_ended_ray_job_stays_and_its_cluster_is_released() -> None:
    loop = ReconcileLoop(retry=AT_ONCE)
    loop.run()
    loop.fail()
    loop.set_kuberay_status(jobStatus="FAILED", jobDeploymentStatus="Failed")
    actions = loop.reconcile()
    assert (actions.remove, [seen.name for seen in actions.release]) == ((), ["job-1"])
    loop.reconcile()
    assert set(loop.ray_jobs) == {"job-1", "job-2"}


def test_the_next_attempt_is_a_new_ray_job_with_its_own_token() -> None:
    loop = failed_once()
    loop.reconcile()
    loop.finalize_deletions()
    loop.reconcile()
    (secret,) = loop.reconcile().create
    asked = Names("job", owner()["uid"], 2)
    assert secret["metadata"]["name"] == asked.secret
    assert secret["metadata"]["ownerReferences"][0]["name"] == "job-2"
    assert [attempt["number"] for attempt in loop.status["attempts"]] == [1, 2]


def test_progress_does_not_go_back_from_one_attempt_to_the_next() -> None:
    loop = ReconcileLoop(retry=AT_ONCE)
    loop.run(rows=70)
    loop.fail()
    loop.reconcile()
    loop.finalize_deletions()
    loop.run(rows=5)
    assert loop.status["progress"]["rows"] == 70
    assert loop.attempt["rows"] == 5


def test_a_job_has_failed_when_no_attempt_is_left() -> None:
    loop = ReconcileLoop(retry={**AT_ONCE, "maxAttempts": 2})
    for _ in range(2):
        loop.run()
        loop.fail()
        loop.reconcile()
        loop.finalize_deletions()
    assert (loop.phase, loop.reason) == ("Failed", "NodeLost")
    assert loop.status["failedAttempts"] == 2
    assert len(loop.status["attempts"]) == 2


def test_a_cause_that_is_not_retried_fails_the_job_at_once() -> None:
    loop = ReconcileLoop()
    loop.run()
    loop.fail("BadInput", "no such bucket")
    assert (loop.phase, loop.reason, loop.message) == ("Failed", "BadInput", "no such bucket")


@pytest.mark.parametrize(
    ("on", "cause", "phase"),
    [
        ({"BadInput": "retry"}, "BadInput", "Retrying"),
        ({"NodeLost": "fail"}, "NodeLost", "Failed"),
        ({"NodeLost": "fail"}, "OutOfMemory", "Retrying"),
    ],
    ids=["retry", "fail", "another"],
)
def test_a_job_may_decide_otherwise(on: dict[str, str], cause: str, phase: str) -> None:
    loop = ReconcileLoop(retry={"onCause": on})
    loop.run()
    loop.fail(cause)
    assert loop.phase == phase


def test_deleted_ray_job_is_retried_only_by_on_cause() -> None:
    for on, phase in (({}, "Failed"), ({"RayJobDeleted": "retry"}, "Retrying")):
        loop = ReconcileLoop(retry={"onCause": on})
        loop.run()
        loop.ray_jobs.clear()
        loop.report = None
        loop.reconcile()
        assert (loop.phase, loop.attempt["cause"]) == (phase, "RayJobDeleted")


def test_foreign_ray_job_replaces_a_deleted_one() -> None:
    loop = ReconcileLoop()
    loop.run()
    loop.ray_job["metadata"]["ownerReferences"] = [owner(OTHER_UID)]
    loop.report = None
    loop.reconcile()
    assert loop.attempt["cause"] == "RayJobDeleted"


# --- the wait between two ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        ({}, [10, 20, 40, 80]),
        ({"initial": "0s"}, [0, 0, 0, 0]),
        ({"initial": "1m", "max": "150s"}, [60, 120, 150, 150]),
        ({"initial": "1h", "max": "1m"}, [60, 60, 60, 60]),
    ],
    ids=["usual", "none", "limited", "above-its-limit"],
)
def test_the_wait_doubles_up_to_its_limit(backoff: dict[str, str], waits: list[int]) -> None:
    loop = ReconcileLoop(retry={"maxAttempts": 5, "backoff": backoff})
    for wait in waits:
        loop.run()
        loop.fail()
        begins = loop.now + timedelta(seconds=wait)
        assert loop.status["nextAttemptTime"] == stamp(begins)
        loop.reconcile(wait)
        loop.finalize_deletions()
    assert loop.status["failedAttempts"] == 4


def test_retry_starts_at_next_attempt_time() -> None:
    loop = failed_once(backoff={"initial": "1m"})
    assert loop.status["nextAttemptTime"] == "2026-03-01T12:01:00Z"
    loop.reconcile()
    loop.finalize_deletions()
    assert loop.reconcile(59).create == ()
    assert loop.reconcile(1).create != ()
    assert "nextAttemptTime" not in loop.status


def test_a_wait_ends_with_the_jobs_total_time() -> None:
    loop = ReconcileLoop(deadlines={"total": "30s"}, retry={"backoff": {"initial": "1m"}})
    loop.run()
    loop.fail()
    loop.reconcile()
    loop.finalize_deletions()
    assert loop.reconcile().again_after == 30
    loop.reconcile(30)
    assert (loop.phase, loop.reason) == ("Failed", "DeadlineExceeded")


def test_a_change_during_the_wait_is_seen_and_the_wait_goes_on() -> None:
    loop = ReconcileLoop(retry={"backoff": {"initial": "1m"}})
    loop.run()
    loop.fail()
    loop.reconcile()
    loop.finalize_deletions()
    loop.generation = 2
    assert loop.reconcile(20).again_after == 40
    told = {condition["observedGeneration"] for condition in loop.status["conditions"]}
    assert (loop.phase, loop.status["observedGeneration"], told) == ("Retrying", 2, {2})


# --- stopped between two writes ---------------------------------------------------------


def test_unrecorded_ray_job_belongs_to_the_attempt() -> None:
    loop = ReconcileLoop()
    loop.plan()
    loop.status = {}
    assert [body["kind"] for body in loop.reconcile().create] == ["Secret"]
    assert (loop.phase, loop.status["attempt"]) == ("Starting", 1)
    assert "startTime" in loop.attempt


def test_one_that_is_being_taken_away_again_is_waited_for() -> None:
    loop = ReconcileLoop()
    loop.plan()
    loop.status = {}
    loop.ray_jobs["job-1"]["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    actions = loop.reconcile()
    assert (actions.create, actions.status, actions.again_after) == ((), None, POLL_SECONDS)


def test_an_end_that_came_while_the_operator_was_away_is_written() -> None:
    loop = ReconcileLoop()
    loop.start()
    loop.set_kuberay_status(**{**RUNNING, **SUCCEEDED})
    loop.reconcile(86_400)
    assert (loop.phase, loop.attempt["outcome"]) == ("Succeeded", "Succeeded")


# --- bounds -----------------------------------------------------------------------------


def test_a_status_keeps_the_last_attempts_and_counts_all() -> None:
    status: dict[str, object] = {}
    for number in range(1, MAX_ATTEMPTS + 6):
        status = opened(status, Names("job", "uid", number))
        status = closed(status, "Failed", "2026-03-01T12:00:00Z", Cause.NODE_LOST, "x" * 5000)
    kept = status["attempts"]
    assert isinstance(kept, list)
    assert [attempt["number"] for attempt in kept] == list(range(6, MAX_ATTEMPTS + 6))
    assert failed(status) == MAX_ATTEMPTS + 5
    assert len(kept[-1]["message"]) == 1024


def test_an_attempt_ends_once() -> None:
    status = opened({}, Names("job", "uid", 1))
    once = closed(status, "Failed", "2026-03-01T12:00:00Z", Cause.NODE_LOST)
    assert closed(once, "Suspended", "2026-03-01T13:00:00Z") == once
