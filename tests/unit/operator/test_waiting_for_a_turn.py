"""A job that waits until it may begin: what it says, and how it begins."""

from __future__ import annotations

import pytest

from batchinference_operator.reconcile.beginning import LATE_SECONDS, SOON_SECONDS
from batchinference_operator.reconcile.turns import Turn
from support.looks import Looks

FREE = Turn(0, begins=True)
FULL = Turn(3, begins=False, why="only 5 may run at a time")


def waiting(**spec: object) -> Looks:
    looks = Looks(**spec)
    looks.turn = FULL
    looks.look()
    return looks


def test_it_says_how_many_are_ahead_and_makes_nothing() -> None:
    looks = waiting()
    assert (looks.phase, looks.reason) == ("Pending", "WaitingForTurn")
    assert looks.message == "3 jobs are ahead: only 5 may run at a time"
    assert looks.ray_jobs == {}
    assert "attempts" not in looks.status


@pytest.mark.parametrize(("ahead", "seconds"), [(9, SOON_SECONDS), (10, LATE_SECONDS)])
def test_its_place_is_told_anew_the_more_seldom_the_longer_it_takes(
    ahead: int, seconds: float
) -> None:
    looks = Looks()
    looks.turn = Turn(ahead, begins=False)
    assert looks.look().again_after == seconds


def test_the_status_says_that_it_begins_before_anything_is_made() -> None:
    looks = waiting()
    looks.turn = FREE
    actions = looks.look()
    assert (actions.create, actions.takes_turn, actions.again_after) == ((), True, 0)
    assert (looks.phase, looks.status["attempt"]) == ("Planning", 1)
    looks.turn = None
    assert [body["kind"] for body in looks.look().create] == ["ConfigMap", "RayJob"]


def test_a_job_that_cannot_be_made_fails_at_once_and_takes_no_turn() -> None:
    for turn in (FULL, FREE):
        looks = Looks(read={"format": "text"})
        looks.turn = turn
        assert not looks.look().takes_turn
        assert (looks.phase, looks.reason) == ("Failed", "InvalidSpec")


def test_a_job_may_wait_no_longer_than_its_total_time() -> None:
    looks = waiting(deadlines={"total": "1m"})
    looks.look(60)
    assert (looks.phase, looks.reason) == ("Failed", "DeadlineExceeded")


def test_the_pending_deadline_speaks_of_attempts_and_not_of_turns() -> None:
    looks = waiting(deadlines={"pending": "1m"})
    looks.look(86_400)
    assert looks.phase == "Pending"


def test_a_waiting_job_may_be_suspended_and_resumed() -> None:
    looks = waiting()
    looks.spec["suspend"] = True
    looks.look()
    assert looks.phase == "Suspended"
    looks.spec["suspend"] = False
    looks.look()
    assert looks.reason == "WaitingForTurn"


def test_each_attempt_has_to_wait_for_its_turn() -> None:
    looks = Looks(retry={"backoff": {"initial": "0s"}})
    looks.run()
    looks.fail()
    looks.look()
    looks.let_go()
    looks.turn = FULL
    looks.look()
    assert (looks.phase, looks.reason) == ("Pending", "WaitingForTurn")
    looks.turn = FREE
    assert looks.look().takes_turn
    assert looks.status["attempt"] == 2


def test_one_that_waits_for_something_else_takes_no_turn() -> None:
    looks = Looks(retry={"backoff": {"initial": "1m"}})
    looks.run()
    looks.fail()
    looks.look()
    looks.let_go()
    looks.turn = FREE
    assert not looks.look().takes_turn
    assert looks.phase == "Retrying"
