"""Reports why the objects of an attempt cannot be created, and when the job tries again."""

from datetime import datetime, timedelta

from batchinference.spec.causes import Cause
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.suspend import add_suspended_time
from batchinference_operator.status.attempts import remove_attempt
from batchinference_operator.status.conditions import Summary, Waiting, find_condition
from batchinference_operator.status.job_status import Status
from batchinference_operator.status.timestamps import to_rfc3339

UNREACHABLE_SECONDS = 60.0
"""Seconds of unavailability after which the status reports it. Most outages are shorter."""


def status_after_create_error(
    job: JobView, error: str, unreachable_seconds: float | None, now: datetime
) -> Status | None:
    """Return the status that reports why the objects of an attempt could not be created.

    `unreachable_seconds` is for how long the API server has been unreachable; None if it rejected
    an object. Below UNREACHABLE_SECONDS, the result is None.
    """
    if unreachable_seconds is None:
        summary = Summary(Cause.REFUSED.value, error)
    elif unreachable_seconds >= UNREACHABLE_SECONDS:
        message = f"the API server could not create the job's objects: {error}"
        summary = Summary(Waiting.API_SERVER_UNAVAILABLE, message)
    else:
        return None
    return job.with_status(add_suspended_time(job, now)).pending_status(summary, now)


def has_create_error(job: JobView) -> bool:
    """Return whether the status reports that the objects of the attempt cannot be created."""
    reason = find_condition(job.status, "Ready").get("reason")
    return reason in (Cause.REFUSED, Waiting.API_SERVER_UNAVAILABLE)


CREATE_RETRY_SECONDS = 60.0
"""Seconds until a job requests admission again after its RayJob could not be created."""


def requeue_for_admission(job: JobView, now: datetime) -> JobView:
    """Return the job without its last attempt, whose RayJob could not be created. The job requests
    admission again after CREATE_RETRY_SECONDS. Meanwhile, other jobs can start."""
    at = to_rfc3339(now + timedelta(seconds=CREATE_RETRY_SECONDS))
    return job.with_status({**remove_attempt(job.status), "nextAttemptTime": at})
