"""Determines the failure cause of an attempt that has ended."""

from __future__ import annotations

import re
from collections.abc import Sequence

from batchinference.spec.causes import Cause
from batchinference.spec.report import Report
from batchinference_operator.status.job_status import ended_at
from batchinference_operator.status.pods import Disruption, unix_seconds
from batchinference_operator.status.ray_job import RayJobView

_KUBERAY_CAUSES = {
    "SubmissionFailed": Cause.SUBMISSION_FAILED,
    "JobStatusCheckTimeoutExceeded": Cause.SUBMISSION_FAILED,
    "JobDeploymentStatusTransitionGracePeriodExceeded": Cause.SUBMISSION_FAILED,
    "DeadlineExceeded": Cause.DEADLINE_EXCEEDED,
    "PreRunningDeadlineExceeded": Cause.DEADLINE_EXCEEDED,
    "ValidationFailed": Cause.INVALID_SPEC,
}
_DEADLINES = ("DeadlineExceeded", "PreRunningDeadlineExceeded")
"""KubeRay's reasons if it ended the attempt by a deadline of the RayJob, whatever happened to its
pods."""
_HEAD_GONE = ("Ray head pod not found", "Ray job not found")
"""KubeRay's messages if the head, on which the driver runs, no longer exists."""
_DRIVER_KILLED = re.compile(r"^Job entrypoint command failed with exit code (?:137|-9)\b")
"""Ray's message about a driver that ended without a final report, for instance out of memory."""
_UNSPECIFIC = (Cause.APPLICATION, Cause.INTERRUPTED, Cause.WORKER_CRASHED)
"""Causes that a driver reports if it only observed that its pods went away."""
DISRUPTION_SECONDS = 300.0
"""The maximum time between the disruption of a pod and the end of an attempt that it caused."""


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
    if ray_job.reason in _DEADLINES:
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
