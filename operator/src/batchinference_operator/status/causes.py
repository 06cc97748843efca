"""From what is seen of an attempt that has ended to its cause."""

from __future__ import annotations

import re
from collections.abc import Sequence

from batchinference.spec.causes import Cause
from batchinference.spec.report import Report
from batchinference_operator.status.observations import RayJobView
from batchinference_operator.status.pods import Loss, seconds_of
from batchinference_operator.status.status import ended_at

_OF_KUBERAY = {
    "SubmissionFailed": Cause.SUBMISSION_FAILED,
    "JobStatusCheckTimeoutExceeded": Cause.SUBMISSION_FAILED,
    "JobDeploymentStatusTransitionGracePeriodExceeded": Cause.SUBMISSION_FAILED,
    "DeadlineExceeded": Cause.DEADLINE_EXCEEDED,
    "PreRunningDeadlineExceeded": Cause.DEADLINE_EXCEEDED,
    "ValidationFailed": Cause.INVALID_SPEC,
}
_DEADLINES = ("DeadlineExceeded", "PreRunningDeadlineExceeded")
"""KubeRay's reasons where it has ended the attempt by the deadlines of the RayJob, whatever befell
its pods."""
_HEAD_GONE = ("Ray head pod not found", "Ray job not found")
"""What KubeRay says when the head, which is where the driver runs, is not there any more."""
_DRIVER_KILLED = re.compile(r"^Job entrypoint command failed with exit code (?:137|-9)\b")
"""What Ray says of a driver that had no last word, for instance when memory ran out under it."""
_UNSPECIFIC = (Cause.APPLICATION, Cause.INTERRUPTED, Cause.WORKER_CRASHED)
"""Causes of a driver that only saw its pods go."""
LOSS_SECONDS = 300.0
"""How long before the end of an attempt something may have befallen a pod to have led to it."""


def cause_of(
    ray_job: RayJobView, report: Report | None, losses: Sequence[Loss]
) -> tuple[Cause, str]:
    """Why an attempt failed, and in which words.

    The driver knows best, unless all it saw was that pods went away under it. Then, and where it
    said nothing, KubeRay's deadlines count, and else what befell the pods lately, that of the head
    first.
    """
    said = _said(report)
    if said is not None and said[0] not in _UNSPECIFIC:
        return said
    if ray_job.reason in _DEADLINES:
        return _of_kuberay(ray_job)
    ended = ended_at(ray_job, report)
    end = seconds_of(ended) if ended else None
    lately = [loss for loss in losses if _led_to(loss, end)]
    if lately:
        worst = min(lately, key=lambda loss: not loss.of_head)
        return worst.cause, worst.message
    return said or _of_kuberay(ray_job)


def _led_to(loss: Loss, end: float | None) -> bool:
    """Whether a loss may have led to the end; what does not tell its time may always."""
    return end is None or loss.at is None or end - loss.at < LOSS_SECONDS


def _said(report: Report | None) -> tuple[Cause, str] | None:
    if report is None or not report.state.ended:
        return None
    return Cause.named(report.reason) or Cause.APPLICATION, report.message or "the driver failed"


def _of_kuberay(ray_job: RayJobView) -> tuple[Cause, str]:
    message = ray_job.message or f"RayJob {ray_job.name} ended as {ray_job.outcome}"
    if told := Cause.named(ray_job.cause):
        return told, message
    if any(words in message for words in _HEAD_GONE):
        return Cause.HEAD_LOST, message
    if killed := _DRIVER_KILLED.match(message):
        return Cause.HEAD_LOST, f"the driver was killed: {killed[0]}"
    return _OF_KUBERAY.get(ray_job.reason or ray_job.outcome, Cause.APPLICATION), message
