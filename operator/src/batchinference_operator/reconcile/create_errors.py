"""Reports in the status that the objects of an attempt cannot be created, and why."""

from __future__ import annotations

from datetime import datetime

from batchinference.spec.causes import Cause
from batchinference.spec.phases import Phase
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.kueue import rejection_hint
from batchinference_operator.reconcile.suspend import add_suspended_time
from batchinference_operator.status.conditions import Summary, find_condition
from batchinference_operator.status.job_status import Status, StatusUpdate

API_SERVER_UNAVAILABLE = "ApiServerUnavailable"
_CREATE_ERRORS = (Cause.REFUSED.value, API_SERVER_UNAVAILABLE)
UNREACHABLE_SECONDS = 60.0
"""Seconds of unavailability after which the status reports it. Most outages are shorter."""


def status_after_create_error(
    job: JobView,
    error: str,
    unreachable_seconds: float | None,
    now: datetime,
    local_queues: str = "",
) -> Status | None:
    """Return the status that reports why the objects of an attempt could not be created.

    `unreachable_seconds` is for how long the API server has been unreachable; None if it rejected
    an object. For less than UNREACHABLE_SECONDS, return None. `local_queues` is a sentence with the
    LocalQueues of the namespace.
    """
    if unreachable_seconds is None:
        summary = Summary(Cause.REFUSED.value, f"{error}{rejection_hint(job, error, local_queues)}")
    elif unreachable_seconds >= UNREACHABLE_SECONDS:
        message = f"the API server could not create the job's objects: {error}"
        summary = Summary(API_SERVER_UNAVAILABLE, message)
    else:
        return None
    job = job.with_status(add_suspended_time(job, now))
    return job.build_status(StatusUpdate(Phase.PENDING, summary), now)


def has_create_error(job: JobView) -> bool:
    """Return whether the status reports that the objects of the attempt cannot be created."""
    ready = find_condition(job.status, "Ready") or {}
    return ready.get("reason") in _CREATE_ERRORS
