"""A head on a node without power: nobody ends its pod, and KubeRay waits for that without end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchinference.spec.causes import Cause
from batchinference_operator.reconcile.following import HEAD_GONE_SECONDS
from batchinference_operator.status.pods import Loss
from support.looks import Looks


@pytest.fixture
def looks() -> Looks:
    """A job that runs, and whose head a taint of its node has just marked for deletion."""
    looks = Looks(retry={"backoff": {"initial": "1s"}})
    looks.run()
    at = looks.now.timestamp()
    looks.losses = (Loss(Cause.NODE_LOST, "its node is gone", True, at),)
    return looks


def test_one_that_is_silent_since_ends_its_attempt(looks: Looks) -> None:
    looks.said = None
    looks.look(HEAD_GONE_SECONDS)
    assert looks.phases[-1] == "Running", "it may have a moment left"
    looks.look(1)
    assert looks.phases[-1] == "Retrying"
    (attempt,) = looks.status["attempts"]
    assert (attempt["cause"], attempt["message"]) == (
        "NodeLost",
        "its node is gone",
    )


def test_one_that_still_answers_goes_on(looks: Looks) -> None:
    looks.look(HEAD_GONE_SECONDS + 1)
    assert looks.phases[-1] == "Running"


def test_a_worker_that_is_gone_is_none_of_its_business(looks: Looks) -> None:
    looks.losses = tuple(replace(loss, of_head=False) for loss in looks.losses)
    looks.said = None
    looks.look(HEAD_GONE_SECONDS + 1)
    assert looks.phases[-1] == "Running"


def test_the_end_that_kuberay_has_seen_stands(looks: Looks) -> None:
    looks.said = None
    looks.play(jobStatus="SUCCEEDED", jobDeploymentStatus="Complete")
    looks.look(HEAD_GONE_SECONDS + 1)
    assert looks.phases[-1] in ("Finalizing", "Succeeded")
