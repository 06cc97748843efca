"""Pods that go away under a job cost it an attempt at most, never its output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.kubectl import Kubectl
from support.lives import kill, outcomes, pods, rows_are_done
from support.statuses import recorded

Job = dict[str, Any]


def test_a_head_that_is_lost_costs_an_attempt_at_most(
    kubectl: Kubectl, slow_job: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    """KubeRay makes a new head, and hands it the job unless it has given the attempt up before."""
    job = slow_job("headless")
    job["spec"]["retry"] = {"backoff": {"initial": "1s"}}
    name = create(job)
    rows_are_done(kubectl, name)
    kill(kubectl, pods(kubectl, name, "head"))
    with recorded(kubectl, name) as statuses:
        status = kubectl.wait_complete(name, timeout=400)
    assert statuses.rows == sorted(statuses.rows), "progress went back"
    assert status["progress"]["percent"] == 100
    *lost, last = status["attempts"]
    assert last["outcome"] == "Succeeded"
    assert [one["cause"] for one in lost if one["cause"] not in ("HeadLost", "NodeLost")] == []
    assert status.get("failedAttempts", 0) == len(lost) <= 1


def test_workers_that_are_lost_are_replaced_within_the_attempt(
    kubectl: Kubectl, slow_job: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    name = create(slow_job("workless"))
    rows_are_done(kubectl, name)
    kill(kubectl, pods(kubectl, name, "worker"))
    status = kubectl.wait_complete(name, timeout=300)
    assert outcomes(status) == ["Succeeded"]
    assert status["progress"]["percent"] == 100
