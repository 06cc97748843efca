"""A head on a node without power: its pod never ends, and KubeRay waits for it forever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchinference.spec.causes import Cause
from batchinference_operator.reconcile.following import HEAD_GONE_SECONDS
from batchinference_operator.status.pods import Loss
from support.operator.reconcile_loop import ReconcileLoop


@pytest.fixture
def loop() -> ReconcileLoop:
    """A running job whose head was just marked for deletion by a taint of its node."""
    loop = ReconcileLoop(retry={"backoff": {"initial": "1s"}})
    loop.run()
    loop.losses = (Loss(Cause.NODE_LOST, "its node is gone", True, loop.now.timestamp()),)
    return loop


def test_silent_driver_of_a_lost_head_ends_the_attempt(loop: ReconcileLoop) -> None:
    loop.report = None
    loop.reconcile(HEAD_GONE_SECONDS)
    assert loop.phases[-1] == "Running", "the head may still answer"
    loop.reconcile(1)
    assert loop.phases[-1] == "Retrying"
    (attempt,) = loop.status["attempts"]
    assert (attempt["cause"], attempt["message"]) == ("NodeLost", "its node is gone")


@pytest.mark.parametrize("of_head", [True, False], ids=["head-answers", "worker-lost"])
def test_answering_driver_or_lost_worker_does_not_end_the_attempt(
    loop: ReconcileLoop, of_head: bool
) -> None:
    if not of_head:
        loop.losses = tuple(replace(loss, of_head=False) for loss in loop.losses)
        loop.report = None
    loop.reconcile(HEAD_GONE_SECONDS + 1)
    assert loop.phases[-1] == "Running"


def test_end_seen_by_kuberay_wins_over_a_lost_head(loop: ReconcileLoop) -> None:
    loop.report = None
    loop.set_kuberay_status(jobStatus="SUCCEEDED", jobDeploymentStatus="Complete")
    loop.reconcile(HEAD_GONE_SECONDS + 1)
    assert loop.phases[-1] in ("Finalizing", "Succeeded")
