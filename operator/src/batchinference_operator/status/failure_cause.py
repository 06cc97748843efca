"""Classifies failures: why an attempt failed, why a pod does not run, and what ended a pod."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from batchinference.plan.groups import HEAD_GROUP
from batchinference.spec.causes import Cause
from batchinference.spec.report import Report
from batchinference_operator.status.job_status import ended_at
from batchinference_operator.status.pod_status import containers_of, is_gate, is_head, pod_ended_at
from batchinference_operator.status.ray_job import GROUP_LABEL, RAY_CONTAINERS, Object, RayJobView
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
"""KubeRay's messages if the head, on which the driver runs, no longer exists."""
_DRIVER_KILLED = re.compile(r"^Job entrypoint command failed with exit code (?:137|-9)\b")
"""Ray's message about a driver that ended without a final report, for instance out of memory."""
_UNSPECIFIC = (Cause.APPLICATION, Cause.INTERRUPTED, Cause.WORKER_CRASHED)
"""Causes that a driver reports if it only observed that its pods went away."""
DISRUPTION_SECONDS = 300.0
"""The maximum time between the disruption of a pod and the end of an attempt that it caused."""
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
_DISRUPTIONS = {"PreemptionByScheduler": Cause.PREEMPTED}
"""Reasons of the DisruptionTarget condition. By all other reasons, the node is lost."""
_NODE_LOST = ("Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated")
_ENDINGS = {**dict.fromkeys(_NODE_LOST, Cause.NODE_LOST), "Preempting": Cause.PREEMPTED}
"""Values of `status.reason` of a pod."""
_SHORT_OF_MEMORY = "low on resource: memory"


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


def failure_cause(
    ray_job: RayJobView, report: Report | None, disruptions: Sequence[Disruption]
) -> tuple[Cause, str]:
    """Return the cause and the message of a failed attempt.

    The cause that the driver reported takes precedence, unless the driver only observed that its
    pods went away. In that case, or without a report, a deadline of KubeRay is the cause. Otherwise
    it is a recent disruption of a pod, the head first.
    """
    reported = _reported(report)
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
    """Return whether a disruption may have caused the end: true if either has no time."""
    return end is None or disruption.at is None or end - disruption.at < DISRUPTION_SECONDS


def _reported(report: Report | None) -> tuple[Cause, str] | None:
    if report is None or not report.state.ended:
        return None
    return Cause.named(report.reason) or Cause.APPLICATION, report.message or "the driver failed"


def _kuberay_cause(ray_job: RayJobView) -> tuple[Cause, str]:
    message = ray_job.message or f"RayJob {ray_job.name} ended as {ray_job.outcome}"
    if cause := Cause.named(ray_job.cause):
        return cause, message
    if any(text in message for text in _HEAD_GONE):
        return Cause.HEAD_LOST, message
    if killed := _DRIVER_KILLED.match(message):
        return Cause.HEAD_LOST, f"the driver was killed: {killed[0]}"
    return _KUBERAY_CAUSES.get(ray_job.reason or ray_job.outcome, Cause.APPLICATION), message


def problem_of(pod: Object) -> PodProblem | None:
    """Return why a pod does not run; None if its status does not say so."""
    if "deletionTimestamp" in pod["metadata"]:
        return None
    status = pod.get("status") or {}
    for condition in status.get("conditions", []):
        unscheduled = condition["type"] == "PodScheduled" and condition["status"] == "False"
        if unscheduled and not is_gate(condition):
            return PodProblem(Cause.UNSCHEDULABLE, condition.get("message", ""))
    for container in containers_of(status):
        state = container.get("state") or {}
        if "running" not in state and (killed := _killed(container)):
            return PodProblem(Cause.OUT_OF_MEMORY, killed[1])
        waiting = state.get("waiting") or {}
        if cause := _WAITING.get(waiting.get("reason", "")):
            return PodProblem(cause, waiting.get("message") or waiting["reason"])
    return None


def disruption_of(pod: Object) -> Disruption | None:
    """Return what ended a pod or one of its containers from outside; None if nothing did."""
    status = pod.get("status") or {}
    found = _short_of_memory(status) or _disrupted(status)
    if found is None:
        return None
    cause, reason, at = found
    metadata, of_head = pod["metadata"], is_head(pod)
    group = HEAD_GROUP if of_head else metadata["labels"].get(GROUP_LABEL, "")
    return Disruption(cause, f"pod {metadata['name']}: {reason}", of_head, at, group)


_Found = tuple[Cause, str, float | None]


def _short_of_memory(status: Object) -> _Found | None:
    if _SHORT_OF_MEMORY in status.get("message", ""):
        return Cause.OUT_OF_MEMORY, status["message"], pod_ended_at(status) or None
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
        return cause, status.get("message") or reason, pod_ended_at(status) or None
    return None


def _time(body: Object, field: str) -> float | None:
    return unix_seconds(body[field]) if body.get(field) else None
