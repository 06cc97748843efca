"""The operator adopts running jobs that an older version of the operator started."""

from __future__ import annotations

import copy

import pytest

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.admission_queue import AdmissionDecision
from support.operator.objects import CREATED, RUNNING, SUCCEEDED, ray_job_body
from support.operator.reconcile_loop import ReconcileLoop

TURNS = {
    "no-limits": None,
    "its-turn": AdmissionDecision(ahead=0, admitted=True),
    "others-ahead": AdmissionDecision(ahead=3, admitted=False),
}


@pytest.fixture(params=list(TURNS.values()), ids=list(TURNS))
def loop(request: pytest.FixtureRequest) -> ReconcileLoop:
    """Return a job with a status of version 0.1, which did not record attempts."""
    loop = ReconcileLoop()
    ready = {
        "type": "Ready", "status": "False", "lastTransitionTime": CREATED, "reason": "Running",
        "message": "rows are being processed", "observedGeneration": 1,
    }  # fmt: skip
    loop.status = {
        "phase": "Running",
        "observedGeneration": 1,
        "conditions": [ready],
        "progress": {"rows": 10, "total": 20},
        "startTime": CREATED,
        "rayJobName": "job-1",
        "rayClusterName": "job-1-abcde",
    }
    loop.ray_jobs = {"job-1": ray_job_body(**RUNNING, rayClusterName="job-1-abcde")}
    loop.admission = request.param
    return loop


def test_existing_ray_job_is_adopted_and_completed(loop: ReconcileLoop) -> None:
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
    loop.set_report(JobState.SUCCEEDED, rows=20)
    loop.set_kuberay_status(**SUCCEEDED)
    loop.reconcile(5)
    assert (loop.phase, loop.attempt["outcome"]) == ("Succeeded", "Succeeded")
    assert list(loop.ray_jobs) == ["job-1"]
