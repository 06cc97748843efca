"""What is seen of a job's objects, as small plain values.

The operator keeps thousands of them, so nothing is kept that no decision reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from batchinference.rendering import QUEUE_LABEL
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


def _replica_failure(cluster: Object) -> str:
    for condition in cluster.get("conditions", []):
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return str(condition.get("message", ""))
    return ""


@dataclass(frozen=True, slots=True)
class RayJobView:
    """A RayJob. Empty strings stand for what KubeRay has not said yet."""

    name: str
    uid: str
    owner_uid: str | None
    created_at: str
    deleting: bool
    kept: bool
    """Whether the cluster of the finished job waits to be read."""
    job_id: str
    """Ray's name of the driver's run."""
    job_status: str
    deployment_status: str
    reason: str
    message: str
    cluster: str
    head_ip: str
    head_service: str
    driven_since: str
    """When the driver began."""
    ended_at: str
    suspended: bool
    """Whether it waits for somebody to let it begin, as Kueue has its jobs do, or KubeRay has not
    begun yet to let it."""
    queue: str
    """The LocalQueue that it is in; empty where Kueue has no say."""
    no_pods: str
    """Why KubeRay cannot create pods, in the API server's words: a quota, an admission policy."""

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
            job_id=status.get("jobId", ""),
            job_status=status.get("jobStatus", ""),
            deployment_status=status.get("jobDeploymentStatus", ""),
            reason=status.get("reason", ""),
            message=truncated(status.get("message", "")),
            cluster=status.get("rayClusterName", ""),
            head_ip=head.get("podIP", ""),
            head_service=head.get("serviceName", ""),
            driven_since=status.get("startTime", ""),
            ended_at=status.get("endTime", ""),
            queue=body["metadata"].get("labels", {}).get(QUEUE_LABEL, ""),
            suspended=bool(body.get("spec", {}).get("suspend"))
            or status.get("jobDeploymentStatus") in ("Suspending", "Suspended"),
            no_pods=truncated(_replica_failure(cluster)),
        )

    @property
    def held(self) -> bool:
        """Whether somebody holds it back."""
        return self.suspended and not self.ended

    @property
    def awaits_pods(self) -> bool:
        """Whether KubeRay is to make the pods of its cluster."""
        return bool(self.cluster) and not (self.driver_started or self.held or self.ended)

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
    def drives(self) -> bool:
        """Whether its driver runs, as far as KubeRay knows."""
        return self.job_status == "RUNNING" and not self.ended

    @property
    def driver_started(self) -> bool:
        return self.job_status in ("RUNNING", "STOPPED", "SUCCEEDED", "FAILED")
