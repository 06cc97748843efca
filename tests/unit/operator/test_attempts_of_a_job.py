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
from support.looks import Looks
from support.operator_objects import OTHER_UID, RUNNING, SUCCEEDED, owner

AT_ONCE = {"maxAttempts": 3, "backoff": {"initial": "0s"}}


def failed_once(**retry: object) -> Looks:
    """A job whose first attempt was lost with its node."""
    looks = Looks(retry={**AT_ONCE, **retry})
    looks.run()
    looks.fail()
    return looks


# --- the first one ----------------------------------------------------------------------


def test_a_planned_attempt_has_its_number_and_its_ray_job() -> None:
    looks = Looks()
    looks.plan()
    assert looks.phase == "Planning"
    assert looks.status["attempts"] == [{"number": 1, "rayJobName": "job-1"}]
    assert (looks.status["attempt"], looks.status["rayJobName"]) == (1, "job-1")


def test_it_begins_at_the_look_that_sees_its_ray_job() -> None:
    looks = Looks()
    looks.start()
    assert looks.attempt["startTime"] == "2026-03-01T12:00:00Z"
    assert looks.status["startTime"] == "2026-03-01T12:00:00Z"


def test_the_rows_of_an_attempt_are_those_of_its_last_driver() -> None:
    looks = Looks()
    looks.run(rows=10)
    looks.tell(JobState.RUNNING, rows=4)
    looks.look(2)
    assert looks.attempt["rows"] == 4


def test_the_last_report_counts_the_last_rows() -> None:
    looks = Looks()
    looks.run(rows=10)
    looks.tell(JobState.SUCCEEDED, rows=25)
    looks.look(2)
    assert looks.attempt["rows"] == 25


def test_an_attempt_that_succeeds_says_so() -> None:
    looks = Looks()
    looks.run()
    looks.tell(JobState.SUCCEEDED)
    looks.look(60)
    assert looks.attempt["outcome"] == "Succeeded"
    assert looks.attempt["completionTime"] == "2026-03-01T12:01:00Z"
    assert "cause" not in looks.attempt
    assert looks.status["failedAttempts"] == 0


# --- failure ----------------------------------------------------------------------------


def test_a_failed_attempt_keeps_its_cause_and_its_words() -> None:
    looks = failed_once()
    assert looks.attempt["outcome"] == "Failed"
    assert (looks.attempt["cause"], looks.attempt["message"]) == ("NodeLost", "in its words")
    assert looks.status["failedAttempts"] == 1


def test_a_cause_that_is_retried_leads_to_retrying() -> None:
    looks = failed_once()
    assert (looks.phase, looks.reason) == ("Retrying", "Retrying")
    assert looks.message == "attempt 1 failed: NodeLost: in its words"
    assert "completionTime" not in looks.status


def test_what_the_failed_attempt_holds_goes_only_once_its_end_is_written() -> None:
    looks = Looks(retry=AT_ONCE)
    looks.run()
    assert looks.fail().remove == ()
    assert [seen.name for seen in looks.look().remove] == ["job-1"]


def test_what_it_holds_is_looked_after_soon_however_long_the_pause() -> None:
    looks = Looks(retry={"backoff": {"initial": "1h", "max": "1h"}})
    looks.run()
    assert looks.fail().again_after == 0
    assert looks.look().again_after == POLL_SECONDS


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED])
def test_the_end_of_a_job_is_looked_after_by_no_event_alone(state: JobState) -> None:
    looks = Looks(retry={"maxAttempts": 1})
    looks.run()
    looks.tell(state, message="in its words")
    assert looks.look().again_after == 0
    assert looks.look().again_after == END_SECONDS


def test_the_next_attempt_waits_until_nothing_is_left_of_the_one_before() -> None:
    looks = failed_once()
    looks.look()
    for _ in range(3):
        actions = looks.look(1000)
        assert (actions.create, actions.again_after) == ((), POLL_SECONDS), "KubeRay is away"
    looks.let_go()
    assert [body["metadata"]["name"] for body in looks.look().create][-1] == "job-2"
    assert looks.phase == "Planning"


def test_a_ray_job_that_has_ended_stays_and_its_cluster_is_released() -> None:
    looks = Looks(retry=AT_ONCE)
    looks.run()
    looks.fail()
    looks.play(jobStatus="FAILED", jobDeploymentStatus="Failed")
    actions = looks.look()
    assert (actions.remove, [seen.name for seen in actions.release]) == ((), ["job-1"])
    looks.look()
    assert set(looks.ray_jobs) == {"job-1", "job-2"}


def test_the_next_attempt_is_a_new_ray_job_with_its_own_token() -> None:
    looks = failed_once()
    looks.look()
    looks.let_go()
    looks.look()
    (secret,) = looks.look().create
    asked = Names("job", owner()["uid"], 2)
    assert secret["metadata"]["name"] == asked.secret
    assert secret["metadata"]["ownerReferences"][0]["name"] == "job-2"
    assert [attempt["number"] for attempt in looks.status["attempts"]] == [1, 2]


def test_progress_does_not_go_back_from_one_attempt_to_the_next() -> None:
    looks = Looks(retry=AT_ONCE)
    looks.run(rows=70)
    looks.fail()
    looks.look()
    looks.let_go()
    looks.run(rows=5)
    assert looks.status["progress"]["rows"] == 70
    assert looks.attempt["rows"] == 5


def test_a_job_has_failed_when_no_attempt_is_left() -> None:
    looks = Looks(retry={**AT_ONCE, "maxAttempts": 2})
    for _ in range(2):
        looks.run()
        looks.fail()
        looks.look()
        looks.let_go()
    assert (looks.phase, looks.reason) == ("Failed", "NodeLost")
    assert looks.status["failedAttempts"] == 2
    assert len(looks.status["attempts"]) == 2


def test_a_cause_that_is_not_retried_fails_the_job_at_once() -> None:
    looks = Looks()
    looks.run()
    looks.fail("BadInput", "no such bucket")
    assert (looks.phase, looks.reason, looks.message) == ("Failed", "BadInput", "no such bucket")


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
    looks = Looks(retry={"onCause": on})
    looks.run()
    looks.fail(cause)
    assert looks.phase == phase


def test_a_ray_job_that_somebody_deleted_is_made_again_only_on_request() -> None:
    for on, phase in (({}, "Failed"), ({"RayJobDeleted": "retry"}, "Retrying")):
        looks = Looks(retry={"onCause": on})
        looks.run()
        looks.ray_jobs.clear()
        looks.said = None
        looks.look()
        assert (looks.phase, looks.attempt["cause"]) == (phase, "RayJobDeleted")


def test_a_namesake_in_the_place_of_a_deleted_ray_job_is_not_waited_for() -> None:
    looks = Looks()
    looks.run()
    looks.ray_job["metadata"]["ownerReferences"] = [owner(OTHER_UID)]
    looks.said = None
    looks.look()
    assert looks.attempt["cause"] == "RayJobDeleted"


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
    looks = Looks(retry={"maxAttempts": 5, "backoff": backoff})
    for wait in waits:
        looks.run()
        looks.fail()
        begins = looks.now + timedelta(seconds=wait)
        assert looks.status["nextAttemptTime"] == stamp(begins)
        looks.look(wait)
        looks.let_go()
    assert looks.status["failedAttempts"] == 4


def test_the_next_attempt_begins_at_the_time_that_the_status_names() -> None:
    looks = failed_once(backoff={"initial": "1m"})
    assert looks.status["nextAttemptTime"] == "2026-03-01T12:01:00Z"
    looks.look()
    looks.let_go()
    assert looks.look(59).create == ()
    assert looks.look(1).create != ()
    assert "nextAttemptTime" not in looks.status


def test_a_wait_ends_with_the_jobs_total_time() -> None:
    looks = Looks(deadlines={"total": "30s"}, retry={"backoff": {"initial": "1m"}})
    looks.run()
    looks.fail()
    looks.look()
    looks.let_go()
    assert looks.look().again_after == 30
    looks.look(30)
    assert (looks.phase, looks.reason) == ("Failed", "DeadlineExceeded")


def test_a_change_during_the_wait_is_seen_and_the_wait_goes_on() -> None:
    looks = Looks(retry={"backoff": {"initial": "1m"}})
    looks.run()
    looks.fail()
    looks.look()
    looks.let_go()
    looks.generation = 2
    assert looks.look(20).again_after == 40
    told = {condition["observedGeneration"] for condition in looks.status["conditions"]}
    assert (looks.phase, looks.status["observedGeneration"], told) == ("Retrying", 2, {2})


# --- stopped between two writes ---------------------------------------------------------


def test_a_ray_job_that_was_made_before_the_status_said_so_is_the_attempts_own() -> None:
    looks = Looks()
    looks.plan()
    looks.status = {}
    assert [body["kind"] for body in looks.look().create] == ["Secret"]
    assert (looks.phase, looks.status["attempt"]) == ("Starting", 1)
    assert "startTime" in looks.attempt


def test_one_that_is_being_taken_away_again_is_waited_for() -> None:
    looks = Looks()
    looks.plan()
    looks.status = {}
    looks.ray_jobs["job-1"]["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    actions = looks.look()
    assert (actions.create, actions.status, actions.again_after) == ((), None, POLL_SECONDS)


def test_an_end_that_came_while_the_operator_was_away_is_written() -> None:
    looks = Looks()
    looks.start()
    looks.play(**{**RUNNING, **SUCCEEDED})
    looks.look(86_400)
    assert (looks.phase, looks.attempt["outcome"]) == ("Succeeded", "Succeeded")


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
