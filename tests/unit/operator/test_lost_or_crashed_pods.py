"""Pods on a node without power never terminate, and KubeRay waits for them forever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batchinference.rendering import QUEUE_LABEL
from batchinference.spec.causes import Cause
from batchinference.spec.report import JobState
from batchinference_operator.reconcile.lost_or_crashed_pods import LOST_PODS_SECONDS
from batchinference_operator.status.pod_problems import Disruption
from batchinference_operator.status.pod_view import PodView
from support.operator.objects import placed, pod_body
from support.operator.reconcile_loop import ReconcileLoop


@pytest.fixture
def loop() -> ReconcileLoop:
    """Return a running job whose head was just marked for deletion by a taint of its node."""
    loop = ReconcileLoop(retry={"backoff": {"initial": "1s"}})
    loop.run()
    loop.disruption = Disruption(Cause.NODE_LOST, "its node is gone", True, loop.now.timestamp())
    return loop


def test_unreachable_driver_of_a_lost_head_ends_the_attempt(loop: ReconcileLoop) -> None:
    loop.report = None
    loop.reconcile(LOST_PODS_SECONDS)
    assert loop.phases[-1] == "Running", "the head may still answer"
    loop.reconcile(1)
    assert loop.phases[-1] == "Retrying"
    (attempt,) = loop.status["attempts"]
    assert (attempt["cause"], attempt["message"]) == ("NodeLost", "its node is gone")


def test_head_that_was_replaced_does_not_end_the_attempt(loop: ReconcileLoop) -> None:
    loop.disruption = replace(loop.disruption, replaced=True)
    loop.report = None
    loop.reconcile(3 * 3600)
    assert loop.phases[-1] == "Running"


def head(uid: str) -> PodView:
    return replace(PodView.of(pod_body("job-1-head", **placed())), uid=uid, is_head=True)


def lose_head(loop: ReconcileLoop, number: int, cause: Cause, rows: int) -> None:
    """Let the head be lost, and the driver continue on the next one with this number of rows."""
    lost = Disruption(cause, "killed", True, loop.now.timestamp(), "head", f"head-{number}")
    loop.disruption = lost
    loop.set_report(JobState.PREPARING)
    loop.reconcile(20)
    loop.disruption = replace(lost, replaced=True)
    loop.pods = (head(f"head-{number + 1}"),)
    loop.set_report(JobState.RUNNING, rows=rows)
    loop.reconcile(20)


@pytest.mark.parametrize(
    ("cause", "limit"), [(Cause.OUT_OF_MEMORY, 2), (Cause.NODE_LOST, 3), (Cause.HEAD_LOST, 3)]
)
def test_attempt_whose_heads_are_lost_again_and_again_ends(cause: Cause, limit: int) -> None:
    loop = ReconcileLoop(retry={"maxAttempts": 3})
    loop.pods = (head("head-0"),)
    loop.run(rows=10)
    for number in range(limit):
        assert "outcome" not in loop.attempt, number
        lose_head(loop, number, cause, rows=10)
    assert (loop.attempt["outcome"], loop.attempt["cause"]) == ("Failed", cause.value)


def test_heads_between_which_rows_are_finished_may_be_lost_any_number_of_times() -> None:
    """Spot nodes end often. A lack of memory comes again, even after many finished rows."""
    for cause, ends in ((Cause.PREEMPTED, False), (Cause.OUT_OF_MEMORY, True)):
        loop = ReconcileLoop()
        loop.pods = (head("head-0"),)
        loop.run(rows=10)
        for number in range(9):
            if "outcome" not in loop.attempt:
                lose_head(loop, number, cause, rows=20 + number)
        assert ("outcome" in loop.attempt) == ends


def test_retry_does_not_inherit_the_lost_head_of_the_previous_attempt(loop: ReconcileLoop) -> None:
    loop.report = None
    loop.reconcile(LOST_PODS_SECONDS + 1)
    assert loop.phases[-1] == "Retrying"
    loop.remove()
    loop.begin(LOST_PODS_SECONDS)
    assert loop.attempt["number"] == 2
    assert "outcome" not in loop.attempt


@pytest.mark.parametrize("of_head", [True, False], ids=["head-answers", "worker-lost"])
def test_answering_driver_or_lost_worker_does_not_end_the_attempt(
    loop: ReconcileLoop, of_head: bool
) -> None:
    if not of_head:
        loop.disruption = replace(loop.disruption, of_head=False)
        loop.report = None
    loop.reconcile(LOST_PODS_SECONDS + 1)
    assert loop.phases[-1] == "Running"


def lost_worker(loop: ReconcileLoop) -> PodView:
    """Return a worker that was just marked for deletion by a taint of its node."""
    pod = PodView.of(pod_body("job-1-worker", **placed()))
    lost = Disruption(Cause.NODE_LOST, "its node is gone", False, loop.now.timestamp())
    return replace(pod, disruption=lost, group="cpu", deleting=True)


def test_loss_of_all_workers_ends_the_attempt(loop: ReconcileLoop) -> None:
    loop.disruption, loop.pods = None, (lost_worker(loop),)
    loop.reconcile(LOST_PODS_SECONDS)
    assert loop.phases[-1] == "Running", "its node may come back"
    loop.reconcile(1)
    assert loop.phases[-1] == "Retrying"
    (attempt,) = loop.status["attempts"]
    assert (attempt["cause"], attempt["message"]) == ("NodeLost", "its node is gone")


def test_loss_of_all_workers_of_a_group_ends_the_attempt(loop: ReconcileLoop) -> None:
    lost = lost_worker(loop)
    loop.disruption, loop.pods = (
        None,
        (lost, replace(lost, name="gpu", group="gpu", disruption=None)),
    )
    loop.reconcile(LOST_PODS_SECONDS + 1)
    assert loop.phases[-1] == "Retrying"


@pytest.mark.parametrize(
    "change",
    [
        {"deleting": False},
        {"disruption": Disruption(Cause.OUT_OF_MEMORY, "a sidecar", False, 0.0)},
        {"ended_at": 0.0},
    ],
    ids=["not deleted", "killed", "ended"],
)
def test_worker_that_was_not_deleted_with_its_node_is_not_lost(
    loop: ReconcileLoop, change: dict[str, Any]
) -> None:
    loop.disruption, loop.pods = None, (replace(lost_worker(loop), **change),)
    loop.reconcile(LOST_PODS_SECONDS + 1)
    assert loop.phases[-1] == "Running"


def test_attempt_that_kueue_evicts_is_queued(loop: ReconcileLoop) -> None:
    loop.disruption, loop.pods = None, (lost_worker(loop),)
    ray_job = loop.ray_jobs["job-1"]
    ray_job["metadata"].setdefault("labels", {})[QUEUE_LABEL] = "gpu"
    ray_job["spec"]["suspend"] = True
    loop.set_kuberay_status(jobDeploymentStatus="Suspending")
    loop.reconcile(LOST_PODS_SECONDS + 1)
    assert loop.phases[-1] == "Pending"


@pytest.mark.parametrize("change", [{}, {"scheduled_at": None}])
def test_attempt_continues_with_a_remaining_or_starting_worker(
    loop: ReconcileLoop, change: dict[str, Any]
) -> None:
    lost = lost_worker(loop)
    other = replace(lost, name="job-1-other", disruption=None, **change)
    loop.disruption, loop.pods = None, (lost, other)
    loop.reconcile(LOST_PODS_SECONDS + 1)
    assert loop.phases[-1] == "Running"


def test_end_reported_by_kuberay_wins_over_a_lost_head(loop: ReconcileLoop) -> None:
    loop.report = None
    loop.set_kuberay_status(jobStatus="SUCCEEDED", jobDeploymentStatus="Complete")
    loop.reconcile(LOST_PODS_SECONDS + 1)
    assert loop.phases[-1] in ("Finalizing", "Succeeded")
