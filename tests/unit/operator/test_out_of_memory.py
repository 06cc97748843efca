"""After an attempt ran out of memory, the next one requests more."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.plan import parse_plan
from batchinference.spec.causes import Cause
from batchinference_operator.status.attempts import MAX_ATTEMPTS
from batchinference_operator.status.pod_problems import Disruption
from support.documents.minimal import python_step
from support.operator.objects import FAILED
from support.operator.reconcile_loop import ReconcileLoop

POLICY = {"memoryFactor": 1.5, "maxMemory": "10Gi"}
STEPS = [python_step("load", resources={"memory": "2Gi"})]


def start_attempt(loop: ReconcileLoop) -> dict[str, str]:
    """Start an attempt, and return the memory of each group by its plan and its pods."""
    if loop.status:  # remove the RayJob of the last attempt
        loop.remove(1000)
    config_map, ray_job = loop.reconcile().create
    loop.ray_job["spec"]["rayClusterSpec"] = cluster = ray_job["spec"]["rayClusterSpec"]
    plan = parse_plan(config_map["data"]["plan.json"])
    groups = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    assert {group.name: group.memory for group in plan.groups} == {
        name: limit_of(group) for name, group in groups.items()
    }
    return {name: limit_of(group) for name, group in (
        ("head", cluster["headGroupSpec"]), *groups.items())}  # fmt: skip


def limit_of(group: Any) -> str:
    (container,) = group["template"]["spec"]["containers"]
    return str(container["resources"]["limits"]["memory"])


def run_out(loop: ReconcileLoop, group: str | None) -> None:
    """Let a pod of the group be killed, or let the driver report it without a killed pod."""
    loop.disruption = None
    loop.run()
    if group is None:
        loop.fail("OutOfMemory", "Ray killed a worker process")
        return
    killed = Disruption(Cause.OUT_OF_MEMORY, "killed", group == "head", group=group)
    loop.disruption = killed
    loop.fail("WorkerCrashed", "a worker process died")


@pytest.mark.parametrize(
    ("group", "raised"),
    [
        ("head", {"head": "6Gi"}),
        ("cpu", {"cpu": "6Gi"}),
        ("load", {"load": "3Gi"}),
        (None, {"cpu": "6Gi", "load": "3Gi"}),
    ],
)
def test_group_that_ran_out_of_memory_gets_more(group: str | None, raised: dict[str, str]) -> None:
    loop = ReconcileLoop(retry={"outOfMemory": POLICY}, steps=STEPS)
    before = start_attempt(loop)
    run_out(loop, group)
    assert loop.attempt["cause"] == "OutOfMemory"
    assert loop.attempt["outOfMemory"] == {name: before[name] for name in raised}
    assert start_attempt(loop) == {**before, **raised}
    loop.reconcile()
    assert loop.attempt["memory"] == raised


def test_driver_that_was_killed_ran_out_of_the_memory_of_the_head() -> None:
    """The kernel may kill the driver and not its pod."""
    loop = ReconcileLoop(retry={"outOfMemory": POLICY}, steps=STEPS)
    start_attempt(loop)
    loop.run()
    killed = "Job entrypoint command failed with exit code 137, last available logs: ..."
    loop.set_kuberay_status(**FAILED | {"message": killed})
    loop.report = None
    loop.reconcile(3600)
    assert (loop.attempt["cause"], set(loop.attempt["outOfMemory"])) == ("OutOfMemory", {"head"})


def test_memory_grows_up_to_its_maximum_and_survives_other_failures() -> None:
    """Each attempt is reconciled from the status alone, as after a restart of the operator."""
    loop = ReconcileLoop(retry={"outOfMemory": POLICY, "maxAttempts": 9}, steps=STEPS)
    cpus = [start_attempt(loop)["cpu"]]
    for group in ("cpu", "head", "cpu", "cpu", "cpu"):
        run_out(loop, group)
        cpus.append(start_attempt(loop)["cpu"])
    assert cpus == ["4Gi", "6Gi", "6Gi", "9Gi", "10Gi", "10Gi"]
    loop.spec["cluster"] = {"workers": {"memory": "32Gi"}}
    loop.run()
    loop.fail("NodeLost")
    assert start_attempt(loop)["cpu"] == "32Gi", "the job requests more itself"


def test_memory_is_kept_when_the_attempt_that_ran_out_is_no_longer_in_the_status() -> None:
    loop = ReconcileLoop(retry={"outOfMemory": POLICY, "maxAttempts": 99}, steps=STEPS)
    start_attempt(loop)
    run_out(loop, "cpu")
    loop.disruption = None
    for _ in range(MAX_ATTEMPTS + 1):
        assert start_attempt(loop)["cpu"] == "6Gi"
        loop.run()
        loop.fail("NodeLost")
    assert all("outOfMemory" not in attempt for attempt in loop.status["attempts"])


def test_without_the_policy_the_memory_is_that_of_the_job() -> None:
    loop = ReconcileLoop(steps=STEPS)
    before = start_attempt(loop)
    run_out(loop, "cpu")
    assert start_attempt(loop) == before
    loop.reconcile()
    assert "memory" not in loop.attempt
