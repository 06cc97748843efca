"""Finds out why a pod does not run, and how it was lost or crashed."""

import re
from dataclasses import dataclass
from datetime import timedelta

from batchinference.credentials import without_credentials
from batchinference.plan.groups import HEAD_GROUP
from batchinference.rendering import NODE_TYPE_LABEL, POD_GROUP_LABEL
from batchinference.spec.causes import Cause
from batchinference.spec.durations import time_of
from batchinference.text import in_one_line
from batchinference_operator.status.conditions import find_condition
from batchinference_operator.status.ray_job_view import RAY_CONTAINERS, Object, section
from batchinference_operator.status.timestamps import unix_seconds


def is_head(pod: Object) -> bool:
    """Return whether a pod is the head of a RayCluster."""
    return bool(pod["metadata"]["labels"].get(NODE_TYPE_LABEL) == "head")


def containers_of(status: Object) -> list[Object]:
    """Return the statuses of all containers of a pod."""
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


def pod_ended_at(status: Object) -> float | None:
    """Return when the last container of a pod ended; 0 if unknown, None before the end."""
    if status.get("phase") not in ("Succeeded", "Failed"):
        return None
    ends = [
        section(each, "state", "terminated").get("finishedAt") for each in containers_of(status)
    ]
    return max(map(unix_seconds, filter(None, ends)), default=0.0)


_WAITING_CAUSES = {
    "ErrImagePull": Cause.IMAGE_PULL,
    "ImagePullBackOff": Cause.IMAGE_PULL,
    "InvalidImageName": Cause.IMAGE_PULL,
    "ErrImageNeverPull": Cause.IMAGE_PULL,
    "CreateContainerConfigError": Cause.CONTAINER_CONFIG,
    "CreateContainerError": Cause.CONTAINER_CONFIG,
    "RunContainerError": Cause.CONTAINER_CONFIG,
    "CrashLoopBackOff": Cause.CRASH_LOOP,
}
"""Causes by the reason of a waiting container that rarely starts without a change by the user."""
_BACK_OFF = re.compile(r'Back-off pulling image "[^"]*": (?:ErrImagePull: )?(?=.)')
"""A prefix that the kubelet adds to every other message about the same error. The prefix is
removed, because each change of a message is a status write."""
_DISRUPTION_CAUSES = {"PreemptionByScheduler": Cause.PREEMPTED}
"""Causes by reason of the condition DisruptionTarget. All other reasons mean a lost node."""
_NODE_LOST_REASONS = ("Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated")
_POD_REASON_CAUSES = dict.fromkeys(_NODE_LOST_REASONS, Cause.NODE_LOST)
_POD_REASON_CAUSES["Preempting"] = Cause.PREEMPTED
"""Causes by `status.reason` of a pod."""
_EVICTION_MESSAGES = {
    Cause.OUT_OF_MEMORY: re.compile('low on resource: memory|EmptyDir volume "shared-mem"'),
    Cause.OUT_OF_DISK: re.compile(
        "low on resource: (ephemeral-storage|inodes)|ephemeral (local )?storage|EmptyDir volume"
        "|DiskPressure"
    ),
}
"""Causes by the kubelet's message about an evicted pod. `shared-mem` is Ray's object store."""


@dataclass(frozen=True)
class PodProblem:
    """Why a pod does not run: a cause and a message."""

    cause: Cause
    message: str


@dataclass(frozen=True)
class Disruption:
    """The loss of a running pod, for instance by a preemption, a lost node or its memory limit.

    `at` is the time in seconds since 1970; None if unknown. `group` is the worker group of the pod,
    or HEAD_GROUP. `pod` is the pod's uid. `replaced` is whether a new head was created afterwards.
    """

    cause: Cause
    message: str
    of_head: bool
    at: float | None = None
    group: str = ""
    pod: str = ""
    replaced: bool = False


def problem_of(pod: Object) -> PodProblem | None:
    """Return why a pod does not run; None if its status has no reason or it is being deleted."""
    if "deletionTimestamp" in pod["metadata"]:
        return None
    status = section(pod, "status")
    scheduled = find_condition(status, "PodScheduled")
    if scheduled.get("status") == "False" and not has_gate(scheduled):
        return PodProblem(Cause.UNSCHEDULABLE, scheduled.get("message", ""))
    for container in containers_of(status):
        if "running" not in section(container, "state") and (killed := _oom_kill(container)):
            return PodProblem(Cause.OUT_OF_MEMORY, killed[1])
        waiting = section(container, "state", "waiting")
        if cause := _WAITING_CAUSES.get(waiting.get("reason", "")):
            message = _BACK_OFF.sub("", waiting.get("message", ""))
            return PodProblem(cause, message or waiting["reason"])
    return None


def has_gate(scheduled: Object) -> bool:
    """Return whether the condition PodScheduled says that the pod has a scheduling gate."""
    return scheduled.get("reason") == "SchedulingGated" and scheduled["status"] == "False"


def disruption_of(pod: Object) -> Disruption | None:
    """Return the disruption of a pod or of one of its containers; None if there was none."""
    status = section(pod, "status")
    loss = _out_of_resource(status) or _evicted_or_preempted(status)
    if loss is None:
        return None
    cause, reason, at = loss
    metadata, of_head = pod["metadata"], is_head(pod)
    group = HEAD_GROUP if of_head else metadata["labels"].get(POD_GROUP_LABEL, "")
    message, uid = f"pod {metadata['name']}: {reason}", metadata.get("uid") or metadata["name"]
    return Disruption(cause, message, of_head, at, group, uid)


_CauseMessageTime = tuple[Cause, str, float | None]


def _out_of_resource(status: Object) -> _CauseMessageTime | None:
    message = status.get("message", "") if status.get("reason") == "Evicted" else ""
    for cause, pattern in _EVICTION_MESSAGES.items():
        if pattern.search(message):
            return cause, message, pod_ended_at(status) or None
    ray = [one for one in status.get("containerStatuses", []) if one["name"] in RAY_CONTAINERS]
    kills = map(_oom_kill, ray)
    return next(((Cause.OUT_OF_MEMORY, message, at) for at, message in filter(None, kills)), None)


def _oom_kill(container: Object) -> tuple[float | None, str] | None:
    """Return the time and a message if a container was killed for its memory, otherwise None."""
    for state in ("state", "lastState"):
        ended = section(container, state, "terminated")
        if ended.get("reason") == "OOMKilled":
            limit = "it used more memory than its pod's limit"
            return _time(ended, "finishedAt"), f"container {container['name']} was killed: {limit}"
    return None


def _evicted_or_preempted(status: Object) -> _CauseMessageTime | None:
    condition = find_condition(status, "DisruptionTarget")
    if condition.get("status") == "True":
        reason, at = condition.get("reason", ""), _time(condition, "lastTransitionTime")
        message = condition.get("message") or reason
        return _DISRUPTION_CAUSES.get(reason, Cause.NODE_LOST), message, at
    reason = status.get("reason", "")
    if cause := _POD_REASON_CAUSES.get(reason):
        return cause, status.get("message") or reason, pod_ended_at(status) or None
    return None


def _time(body: Object, field: str) -> float | None:
    return unix_seconds(body[field]) if body.get(field) else None


MAX_MESSAGE = 512


@dataclass(frozen=True, slots=True)
class Crash:
    """A crashed pod. `pod` is the pod's uid, and `created_at` in seconds since 1970."""

    pod: str
    cause: Cause
    message: str
    of_head: bool
    group: str = ""
    """The KubeRay worker group of the pod; `headgroup` for the head."""
    created_at: float = 0.0

    @property
    def rejected(self) -> bool:
        """Whether its node has rejected the pod."""
        return self.cause == Cause.NODE_LOST


def crash_of(pod: Object) -> Crash | None:
    """Return the crash of a pod, with the exit code and the termination message of its container.

    None if the pod runs, was evicted, or was deleted before its container ended. Containers of
    Ray's pods never restart, so none reports `CrashLoopBackOff`: KubeRay creates another pod. It
    also replaces a pod that its node rejects, for instance because a device is unhealthy.
    """
    metadata, status = pod["metadata"], section(pod, "status")
    if rejection := _rejection(status):
        cause, why = Cause.NODE_LOST, f"the node has rejected it: {rejection}"
    else:
        ended = _ended_container(status)
        if ended is None or status.get("reason") or _was_deleted(metadata, ended[1]):
            return None
        name, state = ended
        cause = Cause.OUT_OF_MEMORY if state.get("reason") == "OOMKilled" else Cause.CRASH_LOOP
        why = f"container {name} ended with {_describe_exit(state)}"
    return Crash(
        pod=metadata.get("uid") or metadata["name"],
        cause=cause,
        message=f"pod {metadata['name']}: {why}",
        of_head=is_head(pod),
        group=metadata["labels"].get(POD_GROUP_LABEL, ""),
        created_at=creation_time(metadata),
    )


def _rejection(status: Object) -> str:
    """Return why the kubelet has rejected a pod. Such a pod has failed, and no container has a
    status. Empty for all other pods, also for evicted and preempted pods."""
    reason, started = status.get("reason", ""), status.get("containerStatuses")
    if status.get("phase") != "Failed" or not reason or reason in _POD_REASON_CAUSES or started:
        return ""
    return in_one_line(f"{reason}: {status.get('message', '')}")[:MAX_MESSAGE]


def _ended_container(status: Object) -> tuple[str, Object] | None:
    """Return the name and the state of the first failed init container or ended Ray container."""
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind, []):
            state = section(container, "state", "terminated")
            of_init = kind == "initContainerStatuses"
            counts = state.get("exitCode") if of_init else container["name"] in RAY_CONTAINERS
            if state and counts:
                return container["name"], state
    return None


def _was_deleted(metadata: Object, state: Object) -> bool:
    """Return whether the pod was deleted before its container ended."""
    deletion = time_of(metadata.get("deletionTimestamp") or "")  # including the grace period
    if deletion is None:
        return False
    finished = time_of(state.get("finishedAt") or "")
    requested = deletion - timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)
    return finished is None or finished >= requested


def _describe_exit(state: Object) -> str:
    reason = f" ({state['reason']})" if state.get("reason") not in (None, "", "Error") else ""
    message = in_one_line(without_credentials(state.get("message") or ""))
    if len(message) > MAX_MESSAGE:
        message = f"...{message[-MAX_MESSAGE:]}"
    return f"exit code {state.get('exitCode')}{reason}" + (f": {message}" if message else "")


def creation_time(metadata: Object) -> float:
    """Return when an object was created, in seconds since 1970; 0 if unknown."""
    return unix_seconds(metadata.get("creationTimestamp") or "1970-01-01T00:00:00Z")
