"""The operator, KubeRay, the API server and pods are killed: the job ends as if undisturbed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from e2e.jobs import GATED, LONG, counts
from support.cluster.disruptions import restart_api_server
from support.cluster.kubectl import Kubectl, run
from support.cluster.statuses import WatchingKubectl
from support.cluster.waits import (
    JOB_END,
    driver_runs,
    kill,
    objects_of_job,
    outcomes,
    pods,
    suspend,
    wait_for_phase,
    wait_for_reason,
    wait_for_rows,
    wait_until_none_is_left,
)

pytestmark = pytest.mark.timeout(600)
Job = dict[str, Any]
KILLS = 20
HITS = 3
"""Minimum number of kills while the driver runs."""
KUBERAY = "kuberay-operator"


@pytest.fixture
def scale_kuberay() -> Iterator[Callable[[int], None]]:
    """Yield a function that scales KubeRay. Restore KubeRay after the test."""
    printed = run(["kubectl", "get", "deployments", "--all-namespaces", "--output", "json"])
    homes = [body["metadata"] for body in json.loads(printed)["items"]]
    (home,) = [Kubectl(location["namespace"]) for location in homes if location["name"] == KUBERAY]

    def scale(replicas: int) -> None:
        home("scale", f"deployment/{KUBERAY}", f"--replicas={replicas}")
        home("rollout", "status", f"deployment/{KUBERAY}", "--timeout=120s", timeout=130)

    yield scale
    scale(1)


@pytest.mark.long("operator-kills")
def test_operator_killed_repeatedly_resumes_the_job(
    operator: Kubectl,
    kubectl: WatchingKubectl,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
) -> None:
    random = Random(20)
    job = slow_job("hunted", rows=LONG)
    name = create(job)
    hits = 0
    for number in range(KILLS):
        if number == KILLS // 2:
            wait_for_rows(kubectl, name)
        hits += driver_runs(kubectl, name)
        kill(operator, [printed["metadata"]["name"] for printed in operator.list("pods")])
        time.sleep(random.uniform(0.2, 5))  # the test is about random moments
    open_gate(job)
    status = kubectl.wait_complete(name, JOB_END)
    rows = kubectl.history[name].rows
    assert hits >= HITS, "too few kills while the driver ran"
    assert rows == sorted(rows), "progress decreased"
    assert outcomes(status) == ["Succeeded"]
    assert status["counts"] == counts(LONG)
    assert objects_of_job(kubectl, name, "rayjobs") == [f"RayJob {name}-1"]


@pytest.mark.long("outages")
def test_job_completes_without_kuberay_and_suspension_waits_for_it(
    kubectl: Kubectl,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
    scale_kuberay: Callable[[int], None],
) -> None:
    job = slow_job("alone")
    name, kept = create(job), create(slow_job("held"))
    for one in (name, kept):
        wait_for_rows(kubectl, one)
    scale_kuberay(0)
    wait_for_reason(kubectl, create(slow_job("late")), "KubeRayNotResponding", 60)
    suspend(kubectl, kept, True)
    open_gate(job)
    status = kubectl.wait_complete(name, JOB_END)
    assert outcomes(status) == ["Succeeded"], "the report of the driver is enough"
    assert kubectl.status(kept)["phase"] == "Suspending", "KubeRay has not released its RayJob"
    scale_kuberay(1)
    wait_for_phase(kubectl, kept, "Suspended")
    for one in (name, kept):
        wait_until_none_is_left(kubectl, one, "rayclusters,pods")


@pytest.mark.long("outages")
def test_restart_of_the_api_server_costs_no_attempt(
    kubectl: WatchingKubectl,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
) -> None:
    job = slow_job("served")
    name = create(job)
    wait_for_rows(kubectl, name)
    restart_api_server()
    open_gate(job)
    status = kubectl.wait_complete(name, JOB_END)
    rows = kubectl.history[name].rows
    assert rows == sorted(rows), "progress decreased"
    assert outcomes(status) == ["Succeeded"]
    assert status["counts"] == counts(GATED)


@pytest.mark.long("outages")
def test_drain_of_a_node_waits_for_the_head(
    kubectl: Kubectl,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
) -> None:
    job = slow_job("drained")
    name = create(job)
    wait_for_rows(kubectl, name)
    worker, *_ = pods(kubectl, name, "worker")
    node = (kubectl.get("pod", worker) or {})["spec"]["nodeName"]
    ours = f"--pod-selector=batchinference.dev/name={name}"
    options = ("--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=50s")
    try:
        with pytest.raises(AssertionError, match=rf"{name}-1-\S*head.*disruption budget"):
            kubectl("drain", node, ours, *options)
    finally:
        kubectl("uncordon", node)
    assert worker not in pods(kubectl, name, "worker")
    open_gate(job)
    status = kubectl.wait_complete(name, 400)
    assert outcomes(status) == ["Succeeded"]
    assert status["counts"] == counts(GATED)
