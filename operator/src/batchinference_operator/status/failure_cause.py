"""Finds the cause of a failed attempt in its report, from KubeRay, or in a lost pod."""

import re
from collections.abc import Sequence
from math import inf

from batchinference.credentials import without_credentials
from batchinference.spec.causes import Cause
from batchinference.spec.report import Report
from batchinference_operator.status.conditions import truncate_message
from batchinference_operator.status.job_status import ended_at
from batchinference_operator.status.pod_problems import Crash, Disruption
from batchinference_operator.status.ray_job_view import RayJobView
from batchinference_operator.status.timestamps import unix_seconds

Failure = tuple[Cause, str]
"""The cause and the message of a failed attempt."""
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
"""Ray's messages if Ray's memory monitor or the kernel has killed the driver. The kernel does not
always end the pod."""
_UNSPECIFIC = (Cause.APPLICATION, Cause.INTERRUPTED, Cause.NODE_LOST, Cause.WORKER_CRASHED)
"""Causes that a driver may report if the reason is a lost pod, because drivers see no pods."""
DISRUPTION_SECONDS = 300.0
"""Maximum time between the disruption of a pod and the failure of the attempt that it caused."""


def failure_cause(
    ray_job: RayJobView, report: Report | None, disruption: Disruption | None
) -> Failure:
    """Return the cause and the message of a failed attempt.

    The result is the first cause that exists. The order is: a specific cause of the driver, the
    deletion of the RayJob, a deadline of KubeRay. Then follow a recent disruption of a pod, an
    unspecific cause of the driver, and KubeRay's cause.
    """
    reported = _reported_cause(report)
    if reported is not None and reported[0] not in _UNSPECIFIC:
        return reported
    if ray_job.deleting and not ray_job.ended:
        return ray_job_deleted(ray_job.name)
    if _KUBERAY_CAUSES.get(ray_job.reason) == Cause.DEADLINE_EXCEEDED:
        return _kuberay_cause(ray_job)
    ended = ended_at(ray_job, report)
    # if a time is unknown, the disruption counts, because it may have ended the attempt
    earliest = unix_seconds(ended) - DISRUPTION_SECONDS if ended else -inf
    if disruption is not None and (disruption.at is None or disruption.at > earliest):
        return disruption.cause, disruption.message
    return reported or _kuberay_cause(ray_job)


def ray_job_deleted(name: str) -> Failure:
    """Return the cause and the message of an attempt whose RayJob somebody has deleted."""
    return Cause.RAY_JOB_DELETED, f"RayJob {name} was deleted before the job ended"


def _reported_cause(report: Report | None) -> Failure | None:
    if report is None or not report.state.ended:
        return None
    cause = _cause_of_driver(report.reason) or Cause.APPLICATION
    return cause, report.message or "the driver failed"


def _cause_of_driver(name: str | None) -> Cause | None:
    """Return the cause that a driver, or user code in it, names; None if unknown or NoCapacity.
    Only the operator ends an attempt with NoCapacity, which does not count as a failure."""
    return Cause.from_name(name) if name != Cause.NO_CAPACITY else None


def _kuberay_cause(ray_job: RayJobView) -> Failure:
    # the message may be the end of the driver's log, to which user code writes
    message = truncate_message(without_credentials(ray_job.message))
    message = message or f"RayJob {ray_job.name} ended as {ray_job.outcome}"
    if cause := _cause_of_driver(ray_job.cause):
        return cause, message
    if any(text in message for text in _HEAD_GONE):
        return Cause.HEAD_LOST, message
    if killed := _DRIVER_KILLED.search(message):
        return Cause.OUT_OF_MEMORY, f"the driver was killed in the head: {killed[0]}"
    return _KUBERAY_CAUSES.get(ray_job.reason or ray_job.outcome, Cause.APPLICATION), message


def head_ran_out_of_memory(ray_job: RayJobView, crashes: Sequence[Crash]) -> bool:
    """Return whether a head was killed for its memory, or the driver according to Ray's message."""
    killed = any(one.of_head and one.cause == Cause.OUT_OF_MEMORY for one in crashes)
    return killed or bool(_DRIVER_KILLED.search(ray_job.message))
