"""Reads fields of pods in the JSON form of the API server."""

from __future__ import annotations

from batchinference.rendering import NODE_TYPE_LABEL
from batchinference_operator.status.ray_job import Object
from batchinference_operator.status.timestamps import unix_seconds


def is_head(pod: Object) -> bool:
    """Return whether a pod is the head of a RayCluster."""
    return bool(pod["metadata"]["labels"].get(NODE_TYPE_LABEL) == "head")


def containers_of(status: Object) -> list[Object]:
    """Return the statuses of all containers of a pod."""
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


def is_gate(condition: Object) -> bool:
    """Return whether a condition of a pod says that the pod has a scheduling gate."""
    gated = condition.get("reason") == "SchedulingGated" and condition["status"] == "False"
    return gated and condition["type"] == "PodScheduled"


def pod_ended_at(status: Object) -> float | None:
    """Return when the last container of a pod ended; 0 if unknown, None while the pod runs."""
    if status.get("phase") not in ("Succeeded", "Failed"):
        return None
    ends = [
        ended["finishedAt"]
        for container in containers_of(status)
        if (ended := (container.get("state") or {}).get("terminated")) and ended.get("finishedAt")
    ]
    return max(map(unix_seconds, ends), default=0.0)
