"""The observed state of a job's pods: why one does not run, what ended it, and its resources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from batchinference.plan.groups import HEAD_GROUP
from batchinference.rendering import NAME_LABEL
from batchinference.rendering.pod_resources import running_containers
from batchinference.rendering.quantities import cpus_of
from batchinference.spec.causes import Cause
from batchinference.spec.times import time_of
from batchinference_operator.status.ray_job import (
    CLUSTER_LABEL,
    NODE_TYPE_LABEL,
    RAY_CONTAINERS,
    Object,
    gpus_of,
)


@dataclass(frozen=True)
class PodProblem:
    """Why a pod does not run: the cause and the message of the pod."""

    cause: Cause
    message: str


@dataclass(frozen=True)
class Disruption:
    """The disruption of a pod that ran. `at` is in seconds since 1970; None if it is unknown.
    `group` is the worker group of the pod or the name for heads."""

    cause: Cause
    message: str
    of_head: bool
    at: float | None = None
    group: str = ""


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of a job. Times are in seconds since 1970. `ended` is None while the pod holds the
    resources of its node."""

    name: str
    job: str
    cluster: str
    """Its RayCluster. Each attempt has its own, and so does another job of the same name."""
    is_head: bool
    group: str
    """The KubeRay worker group; empty for the head."""
    deleting: bool
    gpus: int
    cpus: float
    started: float | None
    ended: float | None
    gated: bool
    """Whether it has a scheduling gate, as Kueue sets until there is quota."""
    waiting: bool
    """Whether it has a node but its containers have not started, which only Events may explain."""
    problem: PodProblem | None
    disruption: Disruption | None

    @classmethod
    def of(cls, body: Object) -> Self:
        metadata, status = body["metadata"], body.get("status") or {}
        labels = metadata["labels"]
        return cls(
            name=metadata["name"],
            job=labels[NAME_LABEL],
            cluster=labels.get(CLUSTER_LABEL, ""),
            is_head=_is_head(metadata),
            group=labels.get(GROUP_LABEL, ""),
            deleting="deletionTimestamp" in metadata,
            gpus=gpus_of(labels),
            cpus=sum(map(_cpus, running_containers(body.get("spec") or {}))),
            started=_scheduled_at(status),
            ended=_ended_at(status),
            gated=any(map(_is_gate, status.get("conditions", []))),
            waiting=_waits(status) and "deletionTimestamp" not in metadata,
            problem=problem_of(body),
            disruption=disruption_of(body),
        )


GROUP_LABEL = "ray.io/group"
_WAITING = {
    "ErrImagePull": Cause.IMAGE_PULL,
    "ImagePullBackOff": Cause.IMAGE_PULL,
    "InvalidImageName": Cause.IMAGE_PULL,
    "ErrImageNeverPull": Cause.IMAGE_PULL,
    "CreateContainerConfigError": Cause.CONTAINER_CONFIG,
    "CreateContainerError": Cause.CONTAINER_CONFIG,
    "RunContainerError": Cause.CONTAINER_CONFIG,
    "CrashLoopBackOff": Cause.CRASH_LOOP,
}
"""Reasons of a waiting container that rarely resolve without a change."""
_DISRUPTIONS = {
    "PreemptionByScheduler": Cause.PREEMPTED,
    "DeletionByTaintManager": Cause.NODE_LOST,
    "DeletionByPodGC": Cause.NODE_LOST,
    "EvictionByEvictionAPI": Cause.NODE_LOST,
    "TerminationByKubelet": Cause.NODE_LOST,
}
"""Reasons of the DisruptionTarget condition."""
_ENDINGS = {
    "Evicted": Cause.NODE_LOST,
    "NodeLost": Cause.NODE_LOST,
    "NodeShutdown": Cause.NODE_LOST,
    "Shutdown": Cause.NODE_LOST,
    "Terminated": Cause.NODE_LOST,
    "Preempting": Cause.PREEMPTED,
}
"""Values of `status.reason` of a pod."""
_SHORT_OF_MEMORY = "low on resource: memory"


def problem_of(pod: Object) -> PodProblem | None:
    """Return why a pod does not run; None if its status does not say so."""
    if "deletionTimestamp" in pod["metadata"]:
        return None
    status = pod.get("status") or {}
    for condition in status.get("conditions", []):
        unscheduled = condition["type"] == "PodScheduled" and condition["status"] == "False"
        if unscheduled and not _is_gate(condition):
            return PodProblem(Cause.UNSCHEDULABLE, condition.get("message", ""))
    for container in _containers(status):
        if not _runs(container) and (killed := _killed(container)):
            return PodProblem(Cause.OUT_OF_MEMORY, killed[1])
        waiting = (container.get("state") or {}).get("waiting") or {}
        if cause := _WAITING.get(waiting.get("reason", "")):
            return PodProblem(cause, waiting.get("message") or waiting["reason"])
    return None


def _is_gate(condition: Object) -> bool:
    gated = condition.get("reason") == "SchedulingGated" and condition["status"] == "False"
    return gated and condition["type"] == "PodScheduled"


def disruption_of(pod: Object) -> Disruption | None:
    """Return what ended a pod or one of its containers from outside; None if nothing did."""
    status = pod.get("status") or {}
    found = _short_of_memory(status) or _disrupted(status)
    if found is None:
        return None
    cause, reason, at = found
    metadata = pod["metadata"]
    message, is_head = f"pod {metadata['name']}: {reason}", _is_head(metadata)
    group = HEAD_GROUP if is_head else metadata["labels"].get(GROUP_LABEL, "")
    return Disruption(cause, message, is_head, at, group)


def _is_head(metadata: Object) -> bool:
    return bool(metadata["labels"].get(NODE_TYPE_LABEL) == "head")


_Found = tuple[Cause, str, float | None]


def _short_of_memory(status: Object) -> _Found | None:
    if _SHORT_OF_MEMORY in status.get("message", ""):
        return Cause.OUT_OF_MEMORY, status["message"], _ended_at(status) or None
    ray = [one for one in status.get("containerStatuses", []) if one["name"] in RAY_CONTAINERS]
    found = map(_killed, ray)
    return next(((Cause.OUT_OF_MEMORY, message, at) for at, message in filter(None, found)), None)


def _killed(container: Object) -> tuple[float | None, str] | None:
    """Return when a container was killed for its memory, and a message; None if it was not."""
    for state in ("state", "lastState"):
        ended = (container.get(state) or {}).get("terminated") or {}
        if ended.get("reason") == "OOMKilled":
            limit = "it used more memory than its pod's limit"
            return _time(ended, "finishedAt"), f"container {container['name']} was killed: {limit}"
    return None


def _disrupted(status: Object) -> _Found | None:
    for condition in status.get("conditions", []):
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            reason = condition.get("reason", "")
            message = condition.get("message") or reason
            at = _time(condition, "lastTransitionTime")
            return _DISRUPTIONS.get(reason, Cause.NODE_LOST), message, at
    reason = status.get("reason", "")
    if cause := _ENDINGS.get(reason):
        return cause, status.get("message") or reason, _ended_at(status) or None
    return None


def _time(body: Object, field: str) -> float | None:
    return unix_seconds(body[field]) if body.get(field) else None


def _runs(container: Object) -> bool:
    return "running" in (container.get("state") or {})


def _containers(status: Object) -> list[Object]:
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


def _waits(status: Object) -> bool:
    quiet = ("ContainerCreating", "PodInitializing")
    waiting = [(one.get("state") or {}).get("waiting") or {} for one in _containers(status)]
    return any(one.get("reason") in quiet for one in waiting)


def _cpus(container: Object) -> float:
    """Return the CPUs of a container: its request, or its limit if it has no request."""
    resources = container.get("resources") or {}
    amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return cpus_of(amounts.get("cpu", "0"))


def _scheduled_at(status: Object) -> float | None:
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "True":
            return unix_seconds(condition["lastTransitionTime"])
    return None


def _ended_at(status: Object) -> float | None:
    if status.get("phase") not in ("Succeeded", "Failed"):
        return None
    ends = [
        ended["finishedAt"]
        for container in _containers(status)
        if (ended := (container.get("state") or {}).get("terminated")) and ended.get("finishedAt")
    ]
    return max(map(unix_seconds, ends), default=0.0)


def unix_seconds(timestamp: str) -> float:
    """Return the seconds since 1970 of a timestamp. Raises ValueError if it is invalid."""
    time = time_of(timestamp)
    if time is None:
        raise ValueError(f"expected a time such as 2026-01-31T23:59:00Z ({timestamp})")
    return time.timestamp()
