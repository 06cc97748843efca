"""The operator may die or be away at any moment: the job ends in the same status and counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.kubectl import Kubectl, condition, eventually
from support.lives import phase_is
from support.statuses import Statuses, recorded

Job = dict[str, Any]
AWAY_SECONDS = 180
SLOT = "batchinference.test/slot"
UNDISTURBED = {
    "phase": "Succeeded",
    "counts": {"read": 2000, "written": 1800, "failed": 0, "skipped": 200},
    "progress": {"rows": 2000, "total": 2000, "percent": 100},
    "conditions": {"Ready": "True", "Complete": "True", "Failed": "False", "Suspended": "False"},
    "reason": "Succeeded",
    "generation": 1,
}
"""The end of the job when the operator is there all the time."""


def final(status: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on the operator's life: all but times, speeds, names and paths."""
    progress = {key: status["progress"][key] for key in ("rows", "total", "percent")}
    conditions = {found["type"]: found["status"] for found in status["conditions"]}
    reason = (condition(status, "Complete", "True") or {}).get("reason")
    return {
        "phase": status["phase"],
        "counts": status["counts"],
        "progress": progress,
        "conditions": conditions,
        "reason": reason,
        "generation": status["observedGeneration"],
    }


def kill(operator: Kubectl) -> None:
    """Kill the operator's pod at once; its Deployment starts another."""
    operator("delete", "pod", "--all", "--grace-period=0", "--force", "--wait=false")


def percent(kubectl: Kubectl, name: str) -> int:
    found: int = kubectl.status(name).get("progress", {}).get("percent", 0)
    return found


@pytest.fixture
def slot(kubectl: Kubectl) -> Iterator[Callable[[], None]]:
    """Opens the node for pods that ask for the slot, which keeps a job pending until then."""
    node = kubectl.list("nodes")[0]["metadata"]["name"]
    yield lambda: kubectl("label", "node", node, f"{SLOT}=open") and None
    kubectl("label", "node", node, f"{SLOT}-")


def test_killed_in_each_phase(
    operator: Kubectl,
    kubectl: Kubectl,
    slow_job: Callable[[str], Job],
    create: Callable[[Job], str],
    slot: Callable[[], None],
) -> None:
    job = slow_job("killed")
    job["spec"]["cluster"] |= {"nodeSelector": {SLOT: "open"}}
    name = create(job)
    with recorded(kubectl, name) as statuses:
        phase_is(kubectl, name, "Pending")
        kill(operator)
        slot()
        phase_is(kubectl, name, "Starting")
        kill(operator)
        phase_is(kubectl, name, "Running")
        kill(operator)
        eventually("nearly all is done", lambda: percent(kubectl, name) >= 90, 120, interval=0.2)
        operator("scale", "deployment", "--all", "--replicas=0")
        try:
            eventually("the driver has finalized", lambda: ended(kubectl, name), 60)
        finally:
            operator("scale", "deployment", "--all", "--replicas=1")
        status = kubectl.wait_complete(name, timeout=120)
    assert final(status) == UNDISTURBED
    assert_ever_forward(statuses)
    made = {event["involvedObject"]["name"] for event in kubectl.list("events")
            if event["involvedObject"]["kind"] == "RayJob"}  # fmt: skip
    assert {found for found in made if found.startswith(name)} == {f"{name}-1"}


def assert_ever_forward(statuses: Statuses) -> None:
    order = ["Planning", "Pending", "Starting", "Running", "Finalizing", "Succeeded"]
    places = [order.index(phase) for phase in statuses.phases]
    assert statuses.rows == sorted(statuses.rows)
    assert places[-1] == order.index("Succeeded")
    since_running = places[places.index(order.index("Running")) :]
    assert since_running == sorted(since_running), statuses.phases


@pytest.mark.timeout(600)
def test_away_for_three_minutes_across_the_end(
    operator: Kubectl,
    kubectl: Kubectl,
    slow_job: Callable[[str], Job],
    create: Callable[[Job], str],
) -> None:
    name = create(slow_job("away"))
    phase_is(kubectl, name, "Running")
    operator("scale", "deployment", "--all", "--replicas=0")
    left = time.monotonic()
    try:
        eventually("the RayJob ends", lambda: ended(kubectl, name), 150)
        assert not condition(kubectl.status(name), "Complete", "True")
        # being away for that long is what is tested: there is no condition to wait for
        time.sleep(max(0.0, left + AWAY_SECONDS - time.monotonic()))
    finally:
        operator("scale", "deployment", "--all", "--replicas=1")
    assert final(kubectl.wait_complete(name, timeout=60)) == UNDISTURBED


def ended(kubectl: Kubectl, name: str) -> bool:
    ray_job = kubectl.get("rayjob", f"{name}-1") or {}
    return bool(ray_job.get("status", {}).get("jobDeploymentStatus") == "Complete")
