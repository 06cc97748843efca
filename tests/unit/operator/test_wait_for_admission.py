"""A job in the admission queue: its status while it waits, and its start."""

from __future__ import annotations

import pytest

from batchinference_operator.reconcile.admission_queue import AdmissionDecision
from batchinference_operator.reconcile.attempt_start import LONG_QUEUE_SECONDS, SHORT_QUEUE_SECONDS
from support.operator.reconcile_loop import ReconcileLoop

FREE = AdmissionDecision(0, admitted=True)
FULL = AdmissionDecision(3, admitted=False, why="the limit is reached")


def waiting(**spec: object) -> ReconcileLoop:
    loop = ReconcileLoop(**spec)
    loop.admission = FULL
    loop.reconcile()
    return loop


def failed(backoff: str) -> ReconcileLoop:
    """Return a job whose first attempt has failed and was removed."""
    loop = ReconcileLoop(retry={"backoff": {"initial": backoff}})
    loop.lose()
    loop.remove()
    return loop


def test_waiting_job_creates_objects_only_after_its_start_is_recorded() -> None:
    loop = waiting()
    assert (loop.phase, loop.reason) == ("Pending", "AdmissionPending")
    assert loop.message == "3 jobs ahead; the limit is reached"
    assert loop.ray_jobs == {}
    assert "attempts" not in loop.status
    loop.admission = FREE
    actions = loop.reconcile()
    assert (actions.create, actions.admits, actions.requeue_after) == ((), True, 0)
    assert (loop.phase, loop.status["attempt"]) == ("Planning", 1)
    loop.admission = None
    assert [body["kind"] for body in loop.reconcile().create] == ["ConfigMap", "RayJob"]


@pytest.mark.parametrize(("ahead", "seconds"), [(9, SHORT_QUEUE_SECONDS), (10, LONG_QUEUE_SECONDS)])
def test_distant_position_is_updated_less_often(
    loop: ReconcileLoop, ahead: int, seconds: float
) -> None:
    loop.admission = AdmissionDecision(ahead, admitted=False)
    assert loop.reconcile().requeue_after == seconds


def test_invalid_job_fails_before_it_waits() -> None:
    for admission in (FULL, FREE):
        loop = ReconcileLoop(read={"format": "text"})
        loop.admission = admission
        assert not loop.reconcile().admits
        assert (loop.phase, loop.reason) == ("Failed", "InvalidSpec")


@pytest.mark.parametrize(
    ("deadline", "seconds", "phase", "reason"),
    [("total", 60, "Failed", "DeadlineExceeded"),
     ("pending", 86_400, "Pending", "AdmissionPending")],
)  # fmt: skip
def test_only_the_total_deadline_applies_to_a_waiting_job(
    deadline: str, seconds: int, phase: str, reason: str
) -> None:
    loop = waiting(deadlines={deadline: "1m"})
    loop.reconcile(seconds)
    assert (loop.phase, loop.reason) == (phase, reason)


def test_waiting_job_can_be_suspended_and_resumed() -> None:
    loop = waiting()
    loop.spec["suspend"] = True
    loop.reconcile()
    assert loop.phase == "Suspended"
    loop.spec["suspend"] = False
    loop.reconcile()
    assert loop.reason == "AdmissionPending"


def test_each_attempt_waits_for_admission() -> None:
    loop = failed(backoff="0s")
    loop.admission = FULL
    loop.reconcile()
    assert (loop.phase, loop.reason) == ("Pending", "AdmissionPending")
    loop.admission = FREE
    assert loop.reconcile().admits
    assert loop.status["attempt"] == 2


def test_job_in_backoff_is_not_admitted() -> None:
    loop = failed(backoff="1m")
    loop.admission = FREE
    assert not loop.reconcile().admits
    assert loop.phase == "Retrying"
