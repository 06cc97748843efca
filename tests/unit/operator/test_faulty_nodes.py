"""The next attempt does not use the nodes on which a device failed."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec.report import JobState
from batchinference_operator.status.pod_view import PodView
from plugins.messages import Messages
from support.operator.objects import RUNNING, pod_body
from support.operator.reconcile_loop import ReconcileLoop

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
OWN = {"matchExpressions": [{"key": "pool", "operator": "Exists"}]}
AFFINITY = {
    "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [OWN]}},
    "podAntiAffinity": {REQUIRED: [{"labelSelector": {}, "topologyKey": "zone"}]},
}


def start_attempt(loop: ReconcileLoop) -> dict[str, Any]:
    """Start an attempt, and return the affinity of its workers."""
    if loop.status:  # remove the RayJob of the last attempt
        loop.remove(1000)
    _, ray_job = loop.reconcile().create
    cluster = ray_job["spec"]["rayClusterSpec"]
    pods = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    first, *others = [pod["template"]["spec"].get("affinity", {}) for pod in pods]
    assert all(other == first for other in others)
    return dict(first)


def excluded(affinity: dict[str, Any]) -> list[list[str]]:
    """Return the nodes that each term excludes."""
    terms = affinity.get("nodeAffinity", {}).get(REQUIRED, {}).get("nodeSelectorTerms", [])
    last = [term["matchExpressions"][-1] for term in terms]
    assert all((one["key"], one["operator"]) == ("kubernetes.io/hostname", "NotIn") for one in last)
    return [one["values"] for one in last]


def fail_on(loop: ReconcileLoop, *nodes: str, cause: str = "DeviceFailed") -> None:
    """Let the driver report faulty devices while it runs, and then fail."""
    loop.run()
    loop.set_report(JobState.RUNNING, rows=10, faultyNodes=list(nodes))
    loop.reconcile()
    loop.set_kuberay_status(**RUNNING)
    loop.fail(cause)


@pytest.mark.parametrize("cause", ["DeviceFailed", "NodeLost"])
def test_next_attempts_exclude_the_nodes(cause: str) -> None:
    loop = ReconcileLoop(retry={"maxAttempts": 9})
    assert start_attempt(loop) == {}
    fail_on(loop, "gpu-2", "gpu-1", cause=cause)
    assert loop.attempt["faultyNodes"] == ["gpu-2", "gpu-1"]
    assert excluded(start_attempt(loop)) == [["gpu-1", "gpu-2"]]
    fail_on(loop, "gpu-3")
    assert excluded(start_attempt(loop)) == [["gpu-1", "gpu-2", "gpu-3"]]


def test_driver_that_has_started_again_does_not_know_the_nodes_before() -> None:
    loop = ReconcileLoop()
    start_attempt(loop)
    fail_on(loop, "gpu-1", cause="NodeLost")
    assert excluded(start_attempt(loop)) == [["gpu-1"]]
    loop.run()
    for node in ("gpu-3", "gpu-2", "gpu-3"):
        loop.set_report(JobState.RUNNING, rows=10, faultyNodes=[node])
        loop.reconcile()
    assert loop.attempt["faultyNodes"] == ["gpu-3", "gpu-2"]
    loop.set_kuberay_status(**RUNNING)
    loop.fail("DeviceFailed")
    assert excluded(start_attempt(loop)) == [["gpu-1", "gpu-2", "gpu-3"]]


def test_affinity_of_the_job_still_holds() -> None:
    loop = ReconcileLoop()
    loop.spec["cluster"] = {"affinity": AFFINITY}
    start_attempt(loop)
    fail_on(loop, "gpu-1")
    affinity = start_attempt(loop)
    assert excluded(affinity) == [["gpu-1"]]
    (term,) = affinity["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert term["matchExpressions"][:-1] == OWN["matchExpressions"]
    assert affinity["podAntiAffinity"] == AFFINITY["podAntiAffinity"]


def test_message_of_an_unschedulable_pod_names_the_excluded_nodes(messages: Messages) -> None:
    """Without deadlines, such an attempt waits forever if no other node has the devices."""
    loop = ReconcileLoop()
    no_node = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
               "message": "0/1 nodes are available"}  # fmt: skip
    start_attempt(loop)
    loop.run()
    loop.pods = (PodView.of(pod_body("job-1-head", conditions=[no_node])),)
    loop.set_report(JobState.RUNNING, rows=10, faultyNodes=["gpu-1"])
    loop.reconcile()
    assert "gpu-1" not in loop.message
    loop.set_kuberay_status(**RUNNING)
    loop.fail("DeviceFailed")
    start_attempt(loop)
    loop.start()
    loop.pods = (PodView.of(pod_body("job-2-head", attempt=2, conditions=[no_node])),)
    loop.reconcile()
    assert loop.reason == "Unschedulable"
    messages.check(loop.message)


def test_nodes_are_used_again_after_a_suspension() -> None:
    loop = ReconcileLoop()
    start_attempt(loop)
    fail_on(loop, "gpu-1")
    start_attempt(loop)
    loop.run()
    loop.spec["suspend"] = True
    loop.remove()
    loop.reconcile(100)
    loop.spec["suspend"] = False
    assert start_attempt(loop) == {}


@pytest.mark.parametrize("node", ["", "a b", "n" * 64, "a\n", "-a"])
def test_names_that_are_no_nodes_are_ignored(node: str) -> None:
    """Code of users can write the report."""
    loop = ReconcileLoop()
    start_attempt(loop)
    fail_on(loop, node)
    assert start_attempt(loop) == {}
