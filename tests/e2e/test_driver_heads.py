"""The head of an attempt is lost or does not answer: the attempt continues, or ends in time."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from batchinference.rendering import EVICTABLE
from support.cluster.kubectl import Kubectl, eventually
from support.cluster.pod_signals import signal
from support.cluster.waits import (
    CLUSTER_START,
    JOB_END,
    driver_runs,
    outcomes,
    ready_pods,
    wait_for_reason,
    wait_for_rows,
)

pytestmark = [pytest.mark.timeout(900), pytest.mark.long("driver-heads")]
Job = dict[str, Any]
DASHBOARD = "dashboard/dashboard.py"
STATE = "gcs/gcs_server"
"""The process of Ray without which the container of the head ends."""
MAX_LOST_HEADS = 3
FILL_MEMORY = """
import os, time
for _ in range(100):
    if os.fork() == 0:
        block = bytearray(b"x" * (48 << 20))
        time.sleep(600)
    time.sleep(0.05)
"""
"""Many small processes: the kernel kills the largest of those that it may kill, the driver."""


def running_head(kubectl: Kubectl, name: str) -> Job | None:
    return next(iter(ready_pods(kubectl, name, "head")), None)


def driver_head(kubectl: Kubectl, name: str) -> Job:
    head: Job = kubectl.status(name).get("operator", {}).get("driverHead", {})
    return head


def evict(kubectl: Kubectl, pod: Job) -> None:
    """Evict a pod, as `kubectl drain` does."""
    metadata = {key: pod["metadata"][key] for key in ("name", "namespace")}
    text = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/eviction"
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    kubectl("create", "--raw", text, "--filename", "-", text=json.dumps(body))


def wait_for_another_head(kubectl: Kubectl, name: str, lost: Job) -> Job:
    """Wait until the driver runs on another head, which is ready, and return its pod."""
    uid = lost["metadata"]["uid"]

    def another() -> bool:
        known = driver_head(kubectl, name).get("pod", uid) != uid
        return known and running_head(kubectl, name) is not None

    eventually("the driver runs on another head", another, CLUSTER_START)
    head = running_head(kubectl, name)
    assert head is not None
    return head


def test_heads_that_are_lost_again_and_again_end_the_attempt(
    kubectl: Kubectl,
    operator: Kubectl,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
) -> None:
    job = slow_job("heads")
    job["spec"]["retry"] = {"backoff": {"initial": "1s"}}
    name = create(job)
    wait_for_rows(kubectl, name)
    eventually(
        "all rows but the last are done", lambda: is_held(kubectl, operator, name), CLUSTER_START
    )
    head = running_head(kubectl, name)
    for lost in range(MAX_LOST_HEADS):
        assert head is not None
        assert driver_head(kubectl, name)["lost"] == lost
        signal(kubectl, head, STATE, "SIGKILL")
        if lost < MAX_LOST_HEADS - 1:
            head = wait_for_another_head(kubectl, name, head)
    ended = kubectl.status_when(
        name, "the first attempt ends", lambda s: "outcome" in s["attempts"][0], CLUSTER_START
    )
    attempt = ended["attempts"][0]
    assert attempt["cause"] == "HeadLost"
    assert f"lost {MAX_LOST_HEADS} heads" in attempt["message"]
    open_gate(job)
    status = kubectl.wait_complete(name, JOB_END)
    assert outcomes(status) == ["Failed", "Succeeded"]


def is_held(kubectl: Kubectl, operator: Kubectl, name: str) -> bool:
    """Return whether the job waits for its gate: its rows do not grow from poll to poll."""
    before = kubectl.status(name)["progress"]["rows"]
    wait_for_polls(operator, "answered", 10)
    return bool(kubectl.status(name)["progress"]["rows"] == before)


def wait_for_polls(operator: Kubectl, result: str, more: int) -> None:
    """Wait until the operator has polled drivers some more times with this result."""
    before = polls(operator, result)
    eventually(
        f"{more} more polls are {result}", lambda: polls(operator, result) >= before + more, 120
    )


def polls(operator: Kubectl, result: str) -> float:
    """Return the number of polls with this result, of all replicas of the operator."""
    series = re.compile(rf'^batchinference_driver_polls_total{{result="{result}"}} (.+)$', re.M)
    return sum(
        float(value)
        for pod in operator.list("pods", "app.kubernetes.io/name=batch-inference-operator")
        for value in series.findall(metrics(operator, pod["metadata"]["name"]))
    )


def metrics(operator: Kubectl, pod: str) -> str:
    address = f"/api/v1/namespaces/{operator.namespace}/pods/{pod}:8080/proxy/metrics"
    return operator("get", "--raw", address)


def test_late_answer_after_an_eviction_costs_no_attempt(
    kubectl: Kubectl,
    operator: Kubectl,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
) -> None:
    job = slow_job("evicted")
    job["spec"]["cluster"]["annotations"] = {EVICTABLE: "true"}
    name = create(job)
    wait_for_rows(kubectl, name)
    head = running_head(kubectl, name)
    assert head is not None
    evict(kubectl, head)
    head = wait_for_another_head(kubectl, name, head)
    # otherwise the operator does not poll: for KubeRay, the driver has not started
    eventually("the driver has started", lambda: driver_runs(kubectl, name), CLUSTER_START)
    signal(kubectl, head, DASHBOARD, "SIGSTOP")
    wait_for_polls(operator, "failed", 2)
    signal(kubectl, head, DASHBOARD, "SIGCONT")
    open_gate(job)
    status = kubectl.wait_complete(name, JOB_END)
    assert outcomes(status) == ["Succeeded"]


def test_dashboard_that_hangs_ends_the_attempt_by_the_stall_deadline(
    kubectl: Kubectl,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
) -> None:
    job = slow_job("hanging")
    job["spec"] |= {"deadlines": {"stall": "90s"}, "retry": {"backoff": {"initial": "1s"}}}
    name = create(job)
    wait_for_rows(kubectl, name)
    head = running_head(kubectl, name)
    assert head is not None
    signal(kubectl, head, DASHBOARD, "SIGSTOP")
    wait_for_reason(kubectl, name, "DriverSilent", 60)
    ended = kubectl.status_when(
        name, "the first attempt ends", lambda s: "outcome" in s["attempts"][0], CLUSTER_START
    )
    assert ended["attempts"][0]["cause"] == "Stalled"
    open_gate(job)
    status = kubectl.wait_complete(name, JOB_END)
    assert outcomes(status) == ["Failed", "Succeeded"]


def test_memory_that_runs_out_in_the_head_again_and_again_ends_the_job(
    kubectl: Kubectl, slow_job: Callable[..., Job], create: Callable[[Job], str]
) -> None:
    job = slow_job("full")
    job["spec"]["cluster"]["head"] = {"memory": "2Gi"}
    more_memory = {"memoryFactor": 1.5, "maxMemory": "3Gi"}
    job["spec"]["retry"] = {
        "maxAttempts": 2, "backoff": {"initial": "1s"}, "outOfMemory": more_memory,
    }  # fmt: skip
    name = create(job)
    for attempt in range(2):
        kubectl.status_when(
            name, f"attempt {attempt + 1} runs", lambda s, n=attempt: runs(s, n), CLUSTER_START
        )
        eventually(
            f"attempt {attempt + 1} has no memory left",
            lambda n=attempt: fill_memory(kubectl, name) or has_ended(kubectl, name, n),
            CLUSTER_START,
        )
    status = eventually("the job fails", lambda: failed(kubectl, name), CLUSTER_START)
    assert [one["cause"] for one in status["attempts"]] == ["OutOfMemory"] * 2
    assert status["attempts"][1]["memory"] == {"head": "3Gi"}


def runs(status: Job, attempt: int) -> bool:
    return len(status.get("attempts", [])) > attempt and status["phase"] == "Running"


def has_ended(kubectl: Kubectl, name: str, attempt: int) -> bool:
    return "outcome" in kubectl.status(name)["attempts"][attempt]


def failed(kubectl: Kubectl, name: str) -> Job | None:
    status = kubectl.status(name)
    return status if status["phase"] == "Failed" else None


def fill_memory(kubectl: Kubectl, name: str) -> None:
    """Use up the memory of the head; the kernel or Ray kills processes."""
    head = running_head(kubectl, name)
    if head is None:
        return
    inside = ("exec", head["metadata"]["name"], "--container", "ray", "--")
    command = ["kubectl", "--namespace", kubectl.namespace, *inside, "python", "-c", FILL_MEMORY]
    subprocess.run(command, capture_output=True, timeout=300, check=False)
