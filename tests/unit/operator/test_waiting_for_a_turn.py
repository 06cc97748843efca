"""A job that waits until it may begin: what it says, and how it begins."""

from __future__ import annotations

import pytest

from batchinference_operator.reconcile.beginning import LATE_SECONDS, SOON_SECONDS
from batchinference_operator.reconcile.turns import Turn
from support.operator.reconcile_loop import ReconcileLoop

FREE = Turn(0, begins=True)
FULL = Turn(3, begins=False, why="only 5 may run at a time")


def waiting(**spec: object) -> ReconcileLoop:
    loop = ReconcileLoop(**spec)
    loop.turn = FULL
    loop.reconcile()
    return loop


def test_it_says_how_many_are_ahead_and_makes_nothing() -> None:
    loop = waiting()
    assert (loop.phase, loop.reason) == ("Pending", "WaitingForTurn")
    assert loop.message == "3 jobs are ahead: only 5 may run at a time"
    assert loop.ray_jobs == {}
    assert "attempts" not in loop.status


@pytest.mark.parametrize(("ahead", "seconds"), [(9, SOON_SECONDS), (10, LATE_SECONDS)])
def test_position_is_updated_less_often_over_time(ahead: int, seconds: float) -> None:
    loop = ReconcileLoop()
    loop.turn = Turn(ahead, begins=False)
    assert loop.reconcile().again_after == seconds


def test_the_status_says_that_it_begins_before_anything_is_made() -> None:
    loop = waiting()
    loop.turn = FREE
    actions = loop.reconcile()
    assert (actions.create, actions.takes_turn, actions.again_after) == ((), True, 0)
    assert (loop.phase, loop.status["attempt"]) == ("Planning", 1)
    loop.turn = None
    assert [body["kind"] for body in loop.reconcile().create] == ["ConfigMap", "RayJob"]


def test_invalid_job_fails_at_once_without_a_turn() -> None:
    for turn in (FULL, FREE):
        loop = ReconcileLoop(read={"format": "text"})
        loop.turn = turn
        assert not loop.reconcile().takes_turn
        assert (loop.phase, loop.reason) == ("Failed", "InvalidSpec")


def test_a_job_may_wait_no_longer_than_its_total_time() -> None:
    loop = waiting(deadlines={"total": "1m"})
    loop.reconcile(60)
    assert (loop.phase, loop.reason) == ("Failed", "DeadlineExceeded")


def test_the_pending_deadline_speaks_of_attempts_and_not_of_turns() -> None:
    loop = waiting(deadlines={"pending": "1m"})
    loop.reconcile(86_400)
    assert loop.phase == "Pending"


def test_a_waiting_job_may_be_suspended_and_resumed() -> None:
    loop = waiting()
    loop.spec["suspend"] = True
    loop.reconcile()
    assert loop.phase == "Suspended"
    loop.spec["suspend"] = False
    loop.reconcile()
    assert loop.reason == "WaitingForTurn"


def test_each_attempt_has_to_wait_for_its_turn() -> None:
    loop = ReconcileLoop(retry={"backoff": {"initial": "0s"}})
    loop.run()
    loop.fail()
    loop.reconcile()
    loop.finalize_deletions()
    loop.turn = FULL
    loop.reconcile()
    assert (loop.phase, loop.reason) == ("Pending", "WaitingForTurn")
    loop.turn = FREE
    assert loop.reconcile().takes_turn
    assert loop.status["attempt"] == 2


def test_one_that_waits_for_something_else_takes_no_turn() -> None:
    loop = ReconcileLoop(retry={"backoff": {"initial": "1m"}})
    loop.run()
    loop.fail()
    loop.reconcile()
    loop.finalize_deletions()
    loop.turn = FREE
    assert not loop.reconcile().takes_turn
    assert loop.phase == "Retrying"
