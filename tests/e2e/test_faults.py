"""The operator, KubeRay and a node go away and come back: the job ends as if they had not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from support.kubectl import Kubectl, run
from support.lives import (
    belongings,
    kill,
    none_is_left,
    outcomes,
    phase_is,
    pods,
    rows_are_done,
    suspend,
)
from support.machines import restart_api_server
from support.statuses import recorded

Job = dict[str, Any]
KILLS = 20
HITS = 3
"""So many of them at least while the driver runs."""
KUBERAY = "kuberay-operator"
LOST = {"HeadLost", "NodeLost", "SubmissionFailed"}


@pytest.fixture
def kuberay() -> Iterator[Callable[[int], None]]:
    """Scales KubeRay. It is there again after the test."""
    found = run(["kubectl", "get", "deployments", "--all-namespaces", "--output", "json"])
    places = [body["metadata"] for body in json.loads(found)["items"]]
    (home,) = [Kubectl(place["namespace"]) for place in places if place["name"] == KUBERAY]

    def scale(replicas: int) -> None:
        home("scale", f"deployment/{KUBERAY}", f"--replicas={replicas}")
        home("rollout", "status", f"deployment/{KUBERAY}", "--timeout=120s", timeout=130)

    yield scale
    scale(1)


def operators(operator: Kubectl) -> list[str]:
    return [found["metadata"]["name"] for found in operator.list("pods")]


def test_an_operator_that_is_killed_at_any_moment_goes_on_where_it_was(
    operator: Kubectl,
    kubectl: Kubectl,
    slow_job: Callable[[str], Job],
    create: Callable[[Job], str],
) -> None:
    random = Random(20)
    name = create(slow_job("hunted"))
    hits = 0
    with recorded(kubectl, name) as statuses:
        for number in range(KILLS):
            if number == KILLS // 2:
                rows_are_done(kubectl, name)
            hits += driver_runs(kubectl, name)
            kill(operator, operators(operator))
            time.sleep(random.uniform(0.2, 5))  # the moments are what is tested
        status = kubectl.wait_complete(name, timeout=300)
    assert hits >= HITS, "the job was hardly hunted"
    assert statuses.rows == sorted(statuses.rows), "progress went back"
    assert outcomes(status) == ["Succeeded"]
    assert status["counts"] == {"read": 2000, "written": 1800, "failed": 0, "skipped": 200}
    assert belongings(kubectl, name, "rayjobs") == [f"RayJob {name}-1"]


def driver_runs(kubectl: Kubectl, name: str) -> bool:
    """As KubeRay has it: the status may lag behind where there is no operator."""
    ray_job = kubectl.get("rayjob", f"{name}-1") or {}
    return bool(ray_job.get("status", {}).get("jobStatus") == "RUNNING")


def test_without_kuberay_nothing_is_lost_and_nothing_is_said_to_be_gone(
    kubectl: Kubectl,
    slow_job: Callable[[str], Job],
    create: Callable[[Job], str],
    kuberay: Callable[[int], None],
) -> None:
    name, held = create(slow_job("alone")), create(slow_job("held"))
    for one in (name, held):
        rows_are_done(kubectl, one)
    kuberay(0)
    suspend(kubectl, held, True)
    status = kubectl.wait_complete(name, timeout=240)
    assert outcomes(status) == ["Succeeded"], "the driver's word is enough"
    assert kubectl.status(held)["phase"] == "Suspending", "KubeRay has not let go of its RayJob"
    kuberay(1)
    phase_is(kubectl, held, "Suspended")
    for one in (name, held):
        none_is_left(kubectl, one, "rayclusters,pods")


def test_an_api_server_that_is_killed_costs_nothing(
    kubectl: Kubectl, slow_job: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    name = create(slow_job("served"))
    rows_are_done(kubectl, name)
    restart_api_server()
    with recorded(kubectl, name) as statuses:
        status = kubectl.wait_complete(name, timeout=300)
    assert statuses.rows == sorted(statuses.rows), "progress went back"
    assert outcomes(status) == ["Succeeded"]
    assert status["counts"] == {"read": 2000, "written": 1800, "failed": 0, "skipped": 200}


def drained(kubectl: Kubectl, node: str, name: str) -> str:
    """What kubectl says of evicting a job's pods from a node, which takes pods again thereafter."""
    ours = f"--pod-selector=batchinference.dev/name={name}"
    try:
        return kubectl(
            "drain", node, ours, "--force", "--ignore-daemonsets", "--delete-emptydir-data"
        )
    finally:
        kubectl("uncordon", node)


def test_a_drained_node_costs_an_attempt_at_most(
    kubectl: Kubectl, slow_job: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    job = slow_job("drained")
    job["spec"]["retry"] = {"backoff": {"initial": "1s"}}
    name = create(job)
    rows_are_done(kubectl, name)
    worker, *_ = pods(kubectl, name, "worker")
    node = (kubectl.get("pod", worker) or {})["spec"]["nodeName"]
    assert f"pod/{worker} evicted" in drained(kubectl, node, name)
    status = kubectl.wait_complete(name, timeout=400)
    *lost, last = status["attempts"]
    assert last["outcome"] == "Succeeded"
    assert {one["cause"] for one in lost} <= LOST
    assert len(lost) <= 1
    for one in lost:
        if one["cause"] == "NodeLost":
            assert one["message"].startswith(f"pod {name}-1-"), one["message"]
    assert status["progress"]["percent"] == 100
