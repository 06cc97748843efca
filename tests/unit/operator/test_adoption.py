"""Jobs that an operator of an older version has left in the middle of their work."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.turns import Turn
from support.operator.objects import CREATED, RUNNING, SUCCEEDED, ray_job_body
from support.operator.reconcile_loop import ReconcileLoop

TURNS = {
    "no-limits": None,
    "its-turn": Turn(ahead=0, begins=True),
    "others-ahead": Turn(ahead=3, begins=False),
}


def left_running(turn: Turn | None) -> ReconcileLoop:
    """The status that version 0.1 wrote: it knew of no attempts."""
    loop = ReconcileLoop()
    told = {"reason": "Running", "message": "rows are being processed", "observedGeneration": 1}
    ready: dict[str, Any] = {"type": "Ready", "status": "False", "lastTransitionTime": CREATED}
    loop.status = {
        "phase": "Running",
        "observedGeneration": 1,
        "conditions": [{**ready, **told}],
        "progress": {"rows": 10, "total": 20},
        "startTime": CREATED,
        "rayJobName": "job-1",
        "rayClusterName": "job-1-abcde",
    }
    loop.ray_jobs = {"job-1": ray_job_body(**RUNNING, rayClusterName="job-1-abcde")}
    loop.turn = turn
    return loop


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_its_ray_job_is_followed_and_no_other_is_made(turn: Turn | None) -> None:
    loop = left_running(turn)
    before = copy.deepcopy(loop.ray_jobs)
    loop.reconcile()
    loop.set_report(JobState.RUNNING, rows=15)
    loop.reconcile(5)
    assert loop.ray_jobs == before
    assert (loop.phase, loop.status["progress"]["rows"]) == ("Running", 15)
    assert loop.status["startTime"] == CREATED
    (attempt,) = loop.status["attempts"]
    assert (attempt["number"], attempt["rayJobName"]) == (1, "job-1")
    assert attempt["startTime"] == CREATED


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_it_comes_to_its_end_as_any_other(turn: Turn | None) -> None:
    loop = left_running(turn)
    loop.reconcile()
    loop.set_report(JobState.SUCCEEDED, rows=20)
    loop.set_kuberay_status(**SUCCEEDED)
    loop.reconcile(5)
    assert (loop.phase, loop.attempt["outcome"]) == ("Succeeded", "Succeeded")
    assert list(loop.ray_jobs) == ["job-1"]
