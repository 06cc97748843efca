"""A head on a node without power: nobody ends its pod, and KubeRay waits for that without end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchinference.spec.causes import Cause
from batchinference_operator.reconcile.following import HEAD_GONE_SECONDS
from batchinference_operator.status.pods import Loss
from support.operator.reconcile_loop import ReconcileLoop


@pytest.fixture
def loop() -> ReconcileLoop:
    """A job that runs, and whose head a taint of its node has just marked for deletion."""
    loop = ReconcileLoop(retry={"backoff": {"initial": "1s"}})
    loop.run()
    at = loop.now.timestamp()
    loop.losses = (Loss(Cause.NODE_LOST, "its node is gone", True, at),)
    return loop


def test_one_that_is_silent_since_ends_its_attempt(loop: ReconcileLoop) -> None:
    loop.report = None
    loop.reconcile(HEAD_GONE_SECONDS)
    assert loop.phases[-1] == "Running", "it may have a moment left"
    loop.reconcile(1)
    assert loop.phases[-1] == "Retrying"
    (attempt,) = loop.status["attempts"]
    assert (attempt["cause"], attempt["message"]) == (
        "NodeLost",
        "its node is gone",
    )


def test_one_that_still_answers_goes_on(loop: ReconcileLoop) -> None:
    loop.reconcile(HEAD_GONE_SECONDS + 1)
    assert loop.phases[-1] == "Running"


def test_a_worker_that_is_gone_is_none_of_its_business(loop: ReconcileLoop) -> None:
    loop.losses = tuple(replace(loss, of_head=False) for loss in loop.losses)
    loop.report = None
    loop.reconcile(HEAD_GONE_SECONDS + 1)
    assert loop.phases[-1] == "Running"


def test_the_end_that_kuberay_has_seen_stands(loop: ReconcileLoop) -> None:
    loop.report = None
    loop.set_kuberay_status(jobStatus="SUCCEEDED", jobDeploymentStatus="Complete")
    loop.reconcile(HEAD_GONE_SECONDS + 1)
    assert loop.phases[-1] in ("Finalizing", "Succeeded")
