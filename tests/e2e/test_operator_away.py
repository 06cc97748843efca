"""The operator is killed or away in each phase: the job ends in the same status and counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.jobs import GATED, counts
from support.cluster.kubectl import Kubectl, condition, eventually
from support.cluster.statuses import Statuses, WatchingKubectl
from support.cluster.waits import JOB_END, wait_for_phase, wait_for_rows

pytestmark = [pytest.mark.serial, pytest.mark.long("faults"), pytest.mark.timeout(600)]
Job = dict[str, Any]
AWAY_SECONDS = 180
FAILOVER = 20
"""Seconds until another replica leads."""
SLOT = "batchinference.test/slot"
UNDISTURBED = {
    "phase": "Succeeded",
    "counts": counts(GATED),
    "progress": {"rows": GATED, "total": GATED, "percent": 100},
    "conditions": {"Ready": "True", "Complete": "True", "Failed": "False", "Suspended": "False"},
    "reason": "Succeeded",
    "generation": 1,
}
"""The final status of a job whose operator is never away."""


def final(status: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a status that do not depend on the operator's absence: no times, speeds
    and names."""
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


def leader(system: Kubectl) -> str:
    """Return the pod that holds the operators' Lease."""
    lease = system.get("lease", "batch-inference-operator") or {}
    return str(lease.get("spec", {}).get("holderIdentity", "")).rpartition("/")[2]


def kill(operator: Kubectl) -> None:
    """Kill the leader, and wait until the other replica leads."""
    system = Kubectl("kube-system")
    killed = leader(system)
    operator("delete", "pod", killed, "--grace-period=0", "--force", "--wait=false")
    eventually("the other replica leads", lambda: leader(system) not in ("", killed), FAILOVER)


@pytest.fixture
def open_slot(kubectl: Kubectl) -> Iterator[Callable[[], None]]:
    """Yield a function that labels the node. Until then, pods that select the label are pending."""
    node = kubectl.list("nodes")[0]["metadata"]["name"]
    yield lambda: kubectl("label", "node", node, f"{SLOT}=open") and None
    kubectl("label", "node", node, f"{SLOT}-")


def test_operator_killed_in_each_phase_resumes_the_job(
    operator: Kubectl,
    kubectl: WatchingKubectl,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
    open_slot: Callable[[], None],
) -> None:
    job = slow_job("killed")
    job["spec"]["cluster"] |= {"nodeSelector": {SLOT: "open"}}
    name = create(job)
    wait_for_phase(kubectl, name, "Pending")
    kill(operator)
    open_slot()
    wait_for_phase(kubectl, name, "Starting")
    kill(operator)
    wait_for_phase(kubectl, name, "Running")
    kill(operator)
    wait_for_rows(kubectl, name)
    operator("scale", "deployment", "--all", "--replicas=0")
    try:
        open_gate(job)
        eventually("the RayJob ends", lambda: ended(kubectl, name), 120)
    finally:
        operator("scale", "deployment", "--all", "--replicas=2")
    assert final(kubectl.wait_complete(name, JOB_END)) == UNDISTURBED
    assert_phases_only_advance(kubectl.history[name])
    made = {event["involvedObject"]["name"] for event in kubectl.list("events")
            if event["involvedObject"]["kind"] == "RayJob"}  # fmt: skip
    assert {found for found in made if found.startswith(name)} == {f"{name}-1"}


def assert_phases_only_advance(statuses: Statuses) -> None:
    order = ["Planning", "Pending", "Starting", "Running", "Finalizing", "Succeeded"]
    places = [order.index(phase) for phase in statuses.phases]
    assert statuses.rows == sorted(statuses.rows)
    assert places[-1] == order.index("Succeeded")
    since_running = places[places.index(order.index("Running")) :]
    assert since_running == sorted(since_running), statuses.phases


def test_operator_away_for_three_minutes_still_reads_the_report(
    operator: Kubectl,
    kubectl: Kubectl,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
) -> None:
    job = slow_job("away")
    name = create(job)
    wait_for_phase(kubectl, name, "Running")
    operator("scale", "deployment", "--all", "--replicas=0")
    left = time.monotonic()
    try:
        open_gate(job)
        eventually("the RayJob ends", lambda: ended(kubectl, name), 150)
        assert not condition(kubectl.status(name), "Complete", "True")
        # the test is about the long absence: there is no condition to wait for
        time.sleep(max(0.0, left + AWAY_SECONDS - time.monotonic()))
    finally:
        operator("scale", "deployment", "--all", "--replicas=2")
    assert final(kubectl.wait_complete(name, 120)) == UNDISTURBED


def ended(kubectl: Kubectl, name: str) -> bool:
    ray_job = kubectl.get("rayjob", f"{name}-1") or {}
    return bool(ray_job.get("status", {}).get("jobDeploymentStatus") == "Complete")
