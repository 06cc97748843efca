"""What is seen of a job's objects, as small plain values.

The operator keeps thousands of them, so nothing is kept that no decision reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from batchinference.rendering import NAME_LABEL
from batchinference_operator.status.conditions import truncated

Object = dict[str, Any]
"""A Kubernetes object as the API server sends it."""

DASHBOARD_PORT = 8265


def owner_uid(body: Object, kind: str) -> str | None:
    """The uid of the controlling owner of this kind."""
    for reference in body["metadata"].get("ownerReferences", []):
        if reference.get("controller") and reference["kind"] == kind:
            return str(reference["uid"])
    return None


@dataclass(frozen=True)
class RayJobView:
    """A RayJob. Empty strings stand for what KubeRay has not said yet."""

    name: str
    uid: str
    owner_uid: str | None
    created_at: str
    deleting: bool
    kept: bool
    """Whether the cluster of the finished job waits to be read."""
    job_status: str
    deployment_status: str
    reason: str
    message: str
    cluster: str
    head_ip: str
    head_service: str
    ended_at: str

    @classmethod
    def of(cls, body: Object) -> Self:
        status = body.get("status") or {}
        cluster = status.get("rayClusterStatus") or {}
        head = cluster.get("head") or {}
        return cls(
            name=body["metadata"]["name"],
            uid=body["metadata"].get("uid", ""),
            owner_uid=owner_uid(body, "BatchInference"),
            created_at=body["metadata"].get("creationTimestamp", ""),
            deleting="deletionTimestamp" in body["metadata"],
            kept=bool(body.get("spec", {}).get("ttlSecondsAfterFinished")),
            job_status=status.get("jobStatus", ""),
            deployment_status=status.get("jobDeploymentStatus", ""),
            reason=status.get("reason", ""),
            message=truncated(status.get("message", "")),
            cluster=status.get("rayClusterName", ""),
            head_ip=head.get("podIP", ""),
            head_service=head.get("serviceName", ""),
            ended_at=status.get("endTime", ""),
        )

    @property
    def ended(self) -> bool:
        """Whether it will change no more. A RayJob that KubeRay finds invalid never starts."""
        return self.deployment_status in ("Complete", "Failed", "ValidationFailed")

    @property
    def succeeded(self) -> bool:
        """KubeRay calls a job complete whatever way its driver ended."""
        return self.deployment_status == "Complete" and self.job_status == "SUCCEEDED"

    @property
    def outcome(self) -> str:
        """How it ended, in one word. KubeRay's "Complete" tells only that it did."""
        ray = self.job_status.capitalize() if self.deployment_status == "Complete" else ""
        return ray or self.deployment_status

    @property
    def driver_started(self) -> bool:
        return self.job_status in ("RUNNING", "STOPPED", "SUCCEEDED", "FAILED")


@dataclass(frozen=True)
class Trouble:
    """What keeps a pod from running: one word, and the object's own words."""

    reason: str
    message: str


@dataclass(frozen=True)
class PodView:
    """A pod of a job."""

    name: str
    job: str
    trouble: Trouble | None

    @classmethod
    def of(cls, body: Object) -> Self:
        metadata = body["metadata"]
        name = metadata["name"]
        return cls(name, metadata["labels"][NAME_LABEL], trouble_of(body))


_WAITING = {
    "ErrImagePull": "ImagePull",
    "ImagePullBackOff": "ImagePull",
    "InvalidImageName": "ImagePull",
    "ErrImageNeverPull": "ImagePull",
    "CreateContainerConfigError": "ContainerConfig",
    "CreateContainerError": "ContainerConfig",
    "CrashLoopBackOff": "CrashLoop",
    "RunContainerError": "ContainerConfig",
}
"""Reasons of a waiting container that time alone seldom heals."""


def trouble_of(pod: Object) -> Trouble | None:
    """Why a pod does not run, if it says so."""
    if "deletionTimestamp" in pod["metadata"]:
        return None
    status = pod.get("status") or {}
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return Trouble("Unschedulable", condition.get("message", ""))
    containers = [
        *status.get("initContainerStatuses", []),
        *status.get("containerStatuses", []),
    ]
    for container in containers:
        if trouble := _container_trouble(container):
            return trouble
    return None


def _container_trouble(container: Object) -> Trouble | None:
    waiting = (container.get("state") or {}).get("waiting") or {}
    if reason := _WAITING.get(waiting.get("reason", "")):
        return Trouble(reason, waiting.get("message") or waiting["reason"])
    ended = (container.get("state") or {}).get("terminated") or {}
    if ended.get("reason") == "OOMKilled":
        limit = "it used more memory than its pod's limit"
        return Trouble("OutOfMemory", f"container {container['name']} was killed: {limit}")
    return None
