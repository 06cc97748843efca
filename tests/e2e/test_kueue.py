"""Jobs in a queue of a real Kueue: a lost worker is replaced, and its replacement does not wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.jobs import GATED, counts
from support.cluster.disruptions import kueue_installed
from support.cluster.kubectl import Kubectl, eventually
from support.cluster.pod_signals import signal
from support.cluster.waits import (
    CLUSTER_START,
    JOB_END,
    outcomes,
    pod_bodies,
    ready_pods,
    wait_for_phase,
    wait_for_reason,
    wait_for_rows,
)

pytestmark = [pytest.mark.timeout(900), pytest.mark.long("kueue")]
Job = dict[str, Any]
QUEUE = "tests"
ELASTIC = "kueue.x-k8s.io/elastic-job"
RAYLET = "raylet/raylet"
"""The process of Ray without which the container of a worker ends."""
FIXED = {"workers": {"min": 1, "max": 1}}


@pytest.fixture(scope="module")
def queue(kubectl: Kubectl) -> Iterator[None]:
    """Install Kueue, and create a LocalQueue with room for one job in the namespace."""
    with kueue_installed():
        flavor = kueue_object("ResourceFlavor", "tests", {})
        quotas = [
            {"name": "cpu", "nominalQuota": "350m"},
            {"name": "memory", "nominalQuota": "2Gi"},
        ]
        group = {
            "coveredResources": ["cpu", "memory"],
            "flavors": [{"name": "tests", "resources": quotas}],
        }
        cluster_queue = kueue_object(
            "ClusterQueue", "tests", {"namespaceSelector": {}, "resourceGroups": [group]}
        )
        local_queue = kueue_object("LocalQueue", QUEUE, {"clusterQueue": "tests"})
        kubectl.apply(flavor, cluster_queue, local_queue)
        yield
        kubectl("delete", "batchinferences", "--all", "--wait")
        kubectl("delete", "localqueue,clusterqueue,resourceflavor", "tests", "--wait")


def kueue_object(kind: str, name: str, spec: Job) -> Job:
    version = "kueue.x-k8s.io/v1beta2"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def ready_workers(kubectl: Kubectl, name: str) -> set[str]:
    return {pod["metadata"]["name"] for pod in ready_pods(kubectl, name, "worker")}


@pytest.mark.parametrize("size", [FIXED, {}], ids=["fixed", "elastic"])
def test_lost_worker_of_a_queued_job_is_replaced(
    queue: None,
    kubectl: Kubectl,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
    size: Job,
) -> None:
    job = slow_job("queued")
    job["spec"]["cluster"] |= {"queueName": QUEUE, **size}
    name = create(job)
    wait_for_rows(kubectl, name)
    ray_job = kubectl.get("rayjob", f"{name}-1") or {}
    assert (ELASTIC in ray_job["metadata"].get("annotations", {})) == (not size)
    lost = ready_workers(kubectl, name)
    for worker in pod_bodies(kubectl, name, "worker"):
        signal(kubectl, worker, RAYLET, "SIGKILL")
    eventually(
        "another worker is ready", lambda: ready_workers(kubectl, name) - lost, CLUSTER_START
    )
    open_gate(job)
    status = kubectl.wait_complete(name, JOB_END)
    assert outcomes(status) == ["Succeeded"]
    assert status["counts"] == counts(GATED)


def test_second_job_waits_for_the_quota_and_says_so(
    queue: None,
    kubectl: Kubectl,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
) -> None:
    first, second = slow_job("first"), slow_job("second")
    for job in (first, second):
        job["spec"]["cluster"] |= {"queueName": QUEUE, **FIXED}
    running = create(first)
    wait_for_phase(kubectl, running, "Running")
    waiting = create(second)
    ready = wait_for_reason(kubectl, waiting, "Queued")
    assert ready["status"] == "False"
    eventually("the message names the quota", lambda: "quota" in reason(kubectl, waiting), 60)
    open_gate(first)
    open_gate(second)
    for name in (running, waiting):
        assert outcomes(kubectl.wait_complete(name, JOB_END)) == ["Succeeded"]


def reason(kubectl: Kubectl, name: str) -> str:
    return str(wait_for_reason(kubectl, name, "Queued")["message"])
