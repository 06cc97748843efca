"""Jobs that an operator of an older version has left in the middle of their work."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.turns import Turn
from support.looks import Looks
from support.operator_objects import CREATED, RUNNING, SUCCEEDED, ray_job_body

TURNS = {
    "no-limits": None,
    "its-turn": Turn(ahead=0, begins=True),
    "others-ahead": Turn(ahead=3, begins=False),
}


def left_running(turn: Turn | None) -> Looks:
    """The status that version 0.1 wrote: it knew of no attempts."""
    looks = Looks()
    told = {"reason": "Running", "message": "rows are being processed", "observedGeneration": 1}
    ready: dict[str, Any] = {"type": "Ready", "status": "False", "lastTransitionTime": CREATED}
    looks.status = {
        "phase": "Running",
        "observedGeneration": 1,
        "conditions": [{**ready, **told}],
        "progress": {"rows": 10, "total": 20},
        "startTime": CREATED,
        "rayJobName": "job-1",
        "rayClusterName": "job-1-abcde",
    }
    looks.ray_jobs = {"job-1": ray_job_body(**RUNNING, rayClusterName="job-1-abcde")}
    looks.turn = turn
    return looks


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_its_ray_job_is_followed_and_no_other_is_made(turn: Turn | None) -> None:
    looks = left_running(turn)
    before = copy.deepcopy(looks.ray_jobs)
    looks.look()
    looks.tell(JobState.RUNNING, rows=15)
    looks.look(5)
    assert looks.ray_jobs == before
    assert (looks.phase, looks.status["progress"]["rows"]) == ("Running", 15)
    assert looks.status["startTime"] == CREATED
    (attempt,) = looks.status["attempts"]
    assert (attempt["number"], attempt["rayJobName"]) == (1, "job-1")
    assert attempt["startTime"] == CREATED


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_it_comes_to_its_end_as_any_other(turn: Turn | None) -> None:
    looks = left_running(turn)
    looks.look()
    looks.tell(JobState.SUCCEEDED, rows=20)
    looks.play(**SUCCEEDED)
    looks.look(5)
    assert (looks.phase, looks.attempt["outcome"]) == ("Succeeded", "Succeeded")
    assert list(looks.ray_jobs) == ["job-1"]
