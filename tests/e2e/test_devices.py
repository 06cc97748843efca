"""Devices on Kubernetes: replicas share a GPU, and attempts without capacity try other GPUs. GPUs
are simulated: Kubernetes and Ray count them, and the steps compute on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from e2e.jobs import GATED, SLOT, counts
from support.cluster.kubectl import Kubectl, eventually
from support.cluster.waits import (
    CLUSTER_START,
    JOB_END,
    outcomes,
    ready_pods,
    wait_for_phase,
    wait_for_reason,
)

Job = dict[str, Any]
GPU = "nvidia.com/gpu"


def test_job_falls_back_to_devices_that_the_cluster_has(
    kubectl: Kubectl,
    slow_job: Callable[[str], Job],
    create: Callable[[Job], str],
    open_gate: Callable[[Job], None],
) -> None:
    """No node has the label of the H100, so the next attempt uses the A100."""
    job = slow_job("fallback")
    step, cluster = job["spec"]["steps"][0], job["spec"]["cluster"]
    step["resources"] = {"gpu": 1, "acceleratorType": ["H100", "A100"]}
    job["spec"]["retry"] = {"maxAttempts": 1}
    cluster["fallback"] = {"after": "20s"}
    cluster["profiles"] = {
        "H100": {"nodeSelector": {SLOT: "h100"}, "deviceHour": "4"},
        "A100": {"deviceHour": "2.5"},
    }
    open_gate(job)
    name = create(job)
    wait_for_reason(kubectl, name, "Unschedulable")
    status = kubectl.wait_complete(name, CLUSTER_START + JOB_END)
    assert status["counts"] == counts(GATED)
    assert outcomes(status) == ["Failed", "Succeeded"]
    assert status["attempts"][0]["cause"] == "NoCapacity"
    choices = [attempt["choice"] for attempt in status["attempts"]]
    assert [choice["acceleratorTypes"] for choice in choices] == [["H100"], ["A100"]]
    assert [choice["deviceHour"] for choice in choices] == ["4", "2.5"]
    assert status["failedAttempts"] == 0


def test_four_replicas_share_a_gpu_in_one_pod(
    kubectl: Kubectl,
    slow_job: Callable[[str], Job],
    create: Callable[[Job], str],
    open_gate: Callable[[Job], None],
) -> None:
    job = slow_job("parts")
    step = job["spec"]["steps"][0]
    step |= {"replicas": {"min": 4, "max": 4}, "resources": {"gpu": 0.25, "cpu": 0.25}}
    name = create(job)
    wait_for_phase(kubectl, name, "Running")

    def gpu_pods() -> list[str]:
        containers = (pod["spec"]["containers"][0] for pod in ready_pods(kubectl, name, "worker"))
        limits = [one["resources"]["limits"] for one in containers]
        return [one[GPU] for one in limits if GPU in one]

    eventually("one pod has a GPU", lambda: gpu_pods() == ["1"], CLUSTER_START)
    open_gate(job)
    status = kubectl.wait_complete(name, JOB_END)
    assert status["counts"] == counts(GATED)
    assert status["deviceSeconds"] > 0
