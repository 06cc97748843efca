"""Functions that wait for events in the life of a job. Timeouts only bound the wait."""

from __future__ import annotations

import json
from typing import Any

from support.cluster.kubectl import Kubectl, condition, eventually

Object = dict[str, Any]
KINDS = "rayjobs,rayclusters,pods"
CLUSTER_START = 300
"""Seconds that a Ray cluster may take to start while others start too."""
JOB_END = 400
"""Seconds that a whole job may take."""


def objects_of_job(kubectl: Kubectl, name: str, kinds: str = KINDS) -> list[str]:
    """List the objects that carry the job's name.

    Pods that have ended do not count: they hold nothing, and outlive their cluster for a moment.
    """
    return [
        f"{result['kind']} {result['metadata']['name']}"
        for result in kubectl.list(kinds)
        if result["metadata"]["name"].startswith(name) and not _has_ended(result)
    ]


def _has_ended(body: Object) -> bool:
    return body["kind"] == "Pod" and body["status"].get("phase") in ("Succeeded", "Failed")


def wait_until_none_is_left(kubectl: Kubectl, name: str, kinds: str = KINDS) -> None:
    left: list[str] = []

    def none_is_left() -> bool:
        left[:] = objects_of_job(kubectl, name, kinds)
        return not left

    try:
        eventually(f"no {kinds} of {name}", none_is_left, timeout=120, interval=1)
    except AssertionError as error:
        raise AssertionError(f"{error}, but {left}") from None


def pods(kubectl: Kubectl, name: str, node_type: str) -> list[str]:
    """Return the names of the job's head pods or worker pods."""
    return [body["metadata"]["name"] for body in pod_bodies(kubectl, name, node_type)]


def pod_bodies(kubectl: Kubectl, name: str, node_type: str) -> list[Object]:
    return kubectl.list("pods", f"batchinference.dev/name={name},ray.io/node-type={node_type}")


def ready_pods(kubectl: Kubectl, name: str, node_type: str) -> list[Object]:
    """Return the job's head pods or worker pods that are ready and are not being deleted."""
    return [pod for pod in pod_bodies(kubectl, name, node_type) if is_ready(pod)]


def is_ready(pod: Object) -> bool:
    ready = condition(pod["status"], "Ready", "True") is not None
    return ready and "deletionTimestamp" not in pod["metadata"]


def rows_done(status: Object) -> int:
    rows: int = status.get("progress", {}).get("rows", 0)
    return rows


def wait_for_rows(kubectl: Kubectl, name: str, more_than: int = 0) -> int:
    """Wait until more rows are done, and return their number."""
    status = kubectl.status_when(
        name, f"more than {more_than} rows are done", lambda s: rows_done(s) > more_than,
        CLUSTER_START,
    )  # fmt: skip
    return rows_done(status)


def wait_for_phase(
    kubectl: Kubectl, name: str, phase: str, timeout: float = CLUSTER_START
) -> Object:
    return kubectl.status_when(name, f"is {phase}", lambda s: s.get("phase") == phase, timeout)


def wait_for_reason(
    kubectl: Kubectl, name: str, reason: str, timeout: float = CLUSTER_START, says: str = ""
) -> Object:
    """Wait until a job is not ready for this reason and says this, and return the condition."""

    def not_ready(status: Object) -> Object:
        result = condition(status, "Ready", "False") or {}
        return result if result.get("reason") == reason and says in result["message"] else {}

    return not_ready(kubectl.status_when(name, f"is not ready: {reason}", not_ready, timeout))


def kill(kubectl: Kubectl, names: list[str]) -> None:
    """Delete pods without a grace period, as if their node had lost power."""
    assert names
    now = ("--grace-period=0", "--force", "--wait=false", "--ignore-not-found")
    kubectl("delete", "pod", *names, *now)


def patch(kubectl: Kubectl, name: str, **spec: Any) -> None:
    """Change fields of the spec of a job."""
    changes = json.dumps({"spec": spec})
    kubectl("patch", "batchinference", name, "--type=merge", "--patch", changes)


def suspend(kubectl: Kubectl, name: str, value: bool) -> None:
    patch(kubectl, name, suspend=value)


def outcomes(status: Object) -> list[str]:
    """Return how each attempt ended."""
    return [attempt.get("outcome", "none yet") for attempt in status["attempts"]]


def driver_runs(kubectl: Kubectl, name: str) -> bool:
    """Return whether the RayJob of the first attempt runs. Without an operator, the status of the
    job is out of date."""
    ray_job = kubectl.get("rayjob", f"{name}-1") or {}
    return bool(ray_job.get("status", {}).get("jobStatus") == "RUNNING")


def ray_jobs_created(kubectl: Kubectl, *names: str) -> list[str]:
    """Return the name of each RayJob of these jobs that has existed, in the order of the jobs."""
    pairs = {
        (event["involvedObject"]["name"], event["involvedObject"]["uid"])
        for event in kubectl.list("events")
        if event["involvedObject"]["kind"] == "RayJob"
    }
    return [ray_job for name in names for ray_job, _ in sorted(pairs) if ray_job.startswith(name)]
