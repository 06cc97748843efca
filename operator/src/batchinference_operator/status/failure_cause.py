"""Classifies failures: why an attempt failed, a pod does not run, or a pod was disrupted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from batchinference.plan.groups import HEAD_GROUP
from batchinference.rendering import POD_GROUP_LABEL
from batchinference.spec.causes import Cause
from batchinference.spec.report import Report
from batchinference_operator.status.crash_detection import Crash
from batchinference_operator.status.job_status import ended_at
from batchinference_operator.status.pod_fields import containers_of, is_gate, is_head, pod_ended_at
from batchinference_operator.status.ray_job import RAY_CONTAINERS, Object, RayJobView
from batchinference_operator.status.timestamps import unix_seconds

_KUBERAY_CAUSES = {
    "SubmissionFailed": Cause.SUBMISSION_FAILED,
    "JobStatusCheckTimeoutExceeded": Cause.SUBMISSION_FAILED,
    "JobDeploymentStatusTransitionGracePeriodExceeded": Cause.SUBMISSION_FAILED,
    "DeadlineExceeded": Cause.DEADLINE_EXCEEDED,
    "PreRunningDeadlineExceeded": Cause.DEADLINE_EXCEEDED,
    "ValidationFailed": Cause.INVALID_SPEC,
}
_HEAD_GONE = ("Ray head pod not found", "Ray job not found")
"""KubeRay's messages if the head, which runs the driver, no longer exists."""
_DRIVER_KILLED = re.compile(
    r"Job entrypoint command failed with exit code (?:137|-9)\b"
    r"|\d+ worker\(s\) were killed due to the node running low on memory"
)
"""Ray's messages if the driver was killed by the kernel, which may not kill the pod, or by Ray's
memory monitor."""
_UNSPECIFIC = (Cause.APPLICATION, Cause.INTERRUPTED, Cause.NODE_LOST, Cause.WORKER_CRASHED)
"""Causes that a driver may report although the reason is a lost pod, which it cannot see."""
DISRUPTION_SECONDS = 300.0
"""Maximum time between the disruption of a pod and the failure of the attempt that it caused."""
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
"""A prefix that the kubelet adds to every other message about the same error. It is removed,
because each change of a message is a status write."""
_DISRUPTION_CAUSES = {"PreemptionByScheduler": Cause.PREEMPTED}
"""Causes by reason of the condition DisruptionTarget. All other reasons mean a lost node."""
_NODE_LOST_REASONS = ("Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated")
_POD_REASON_CAUSES = {
    **dict.fromkeys(_NODE_LOST_REASONS, Cause.NODE_LOST),
    "Preempting": Cause.PREEMPTED,
}
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
    """Why a pod does not run, with the message in its status."""

    cause: Cause
    message: str


@dataclass(frozen=True)
class Disruption:
    """The loss of a running pod, for instance by a preemption, a lost node or its memory limit.

    `at` is the time in seconds since 1970; None if unknown. `group` is the worker group of the pod,
    or HEAD_GROUP. `pod` is its uid. `replaced` is whether another head has been created since.
    """

    cause: Cause
    message: str
    of_head: bool
    at: float | None = None
    group: str = ""
    pod: str = ""
    replaced: bool = False


def failure_cause(
    ray_job: RayJobView, report: Report | None, disruptions: Sequence[Disruption]
) -> tuple[Cause, str]:
    """Return the cause and the message of a failed attempt.

    The first that exists: a specific cause that the driver reported, a deadline of KubeRay, a
    recent disruption of the head or else of a worker, an unspecific cause of the driver, and
    KubeRay's cause.
    """
    reported = _reported_cause(report)
    if reported is not None and reported[0] not in _UNSPECIFIC:
        return reported
    if _KUBERAY_CAUSES.get(ray_job.reason) == Cause.DEADLINE_EXCEEDED:
        return _kuberay_cause(ray_job)
    ended = ended_at(ray_job, report)
    end = unix_seconds(ended) if ended else None
    recent = [disruption for disruption in disruptions if _may_have_caused(disruption, end)]
    if recent:
        decisive = min(recent, key=lambda disruption: not disruption.of_head)
        return decisive.cause, decisive.message
    return reported or _kuberay_cause(ray_job)


def _may_have_caused(disruption: Disruption, end: float | None) -> bool:
    """Return whether a disruption may have ended the attempt; True if a time is unknown."""
    return end is None or disruption.at is None or end - disruption.at < DISRUPTION_SECONDS


def _reported_cause(report: Report | None) -> tuple[Cause, str] | None:
    if report is None or not report.state.ended:
        return None
    return Cause.named(report.reason) or Cause.APPLICATION, report.message or "the driver failed"


def _kuberay_cause(ray_job: RayJobView) -> tuple[Cause, str]:
    message = ray_job.message or f"RayJob {ray_job.name} ended as {ray_job.outcome}"
    if cause := Cause.named(ray_job.cause):
        return cause, message
    if any(text in message for text in _HEAD_GONE):
        return Cause.HEAD_LOST, message
    if killed := _DRIVER_KILLED.search(message):
        return Cause.OUT_OF_MEMORY, f"the driver was killed in the head: {killed[0]}"
    return _KUBERAY_CAUSES.get(ray_job.reason or ray_job.outcome, Cause.APPLICATION), message


def head_ran_out_of_memory(ray_job: RayJobView, crashes: Sequence[Crash]) -> bool:
    """Return whether a head was killed for its memory, or Ray's message says this of the driver."""
    killed = any(one.of_head and one.cause == Cause.OUT_OF_MEMORY for one in crashes)
    return killed or bool(_DRIVER_KILLED.search(ray_job.message))


def problem_of(pod: Object) -> PodProblem | None:
    """Return why a pod does not run; None if its status has no reason."""
    if "deletionTimestamp" in pod["metadata"]:
        return None
    status = pod.get("status") or {}
    for condition in status.get("conditions", []):
        unscheduled = condition["type"] == "PodScheduled" and condition["status"] == "False"
        if unscheduled and not is_gate(condition):
            return PodProblem(Cause.UNSCHEDULABLE, condition.get("message", ""))
    for container in containers_of(status):
        state = container.get("state") or {}
        if "running" not in state and (killed := _oom_kill(container)):
            return PodProblem(Cause.OUT_OF_MEMORY, killed[1])
        waiting = state.get("waiting") or {}
        if cause := _WAITING_CAUSES.get(waiting.get("reason", "")):
            message = _BACK_OFF.sub("", waiting.get("message", ""))
            return PodProblem(cause, message or waiting["reason"])
    return None


def disruption_of(pod: Object) -> Disruption | None:
    """Return the disruption of a pod or of one of its containers; None if there was none."""
    status = pod.get("status") or {}
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
    """Return when a container was killed because of its memory limit, and a message, or None."""
    for state in ("state", "lastState"):
        ended = (container.get(state) or {}).get("terminated") or {}
        if ended.get("reason") == "OOMKilled":
            limit = "it used more memory than its pod's limit"
            return _time(ended, "finishedAt"), f"container {container['name']} was killed: {limit}"
    return None


def _evicted_or_preempted(status: Object) -> _CauseMessageTime | None:
    for condition in status.get("conditions", []):
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            reason = condition.get("reason", "")
            message = condition.get("message") or reason
            at = _time(condition, "lastTransitionTime")
            return _DISRUPTION_CAUSES.get(reason, Cause.NODE_LOST), message, at
    reason = status.get("reason", "")
    if cause := _POD_REASON_CAUSES.get(reason):
        return cause, status.get("message") or reason, pod_ended_at(status) or None
    return None


def _time(body: Object, field: str) -> float | None:
    return unix_seconds(body[field]) if body.get(field) else None
