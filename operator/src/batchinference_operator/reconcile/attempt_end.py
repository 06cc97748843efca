"""Ends an attempt, and completes, retries or fails the job."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from batchinference.spec.causes import Cause
from batchinference.spec.phases import Phase
from batchinference_operator.reconcile.backoff import backoff_seconds
from batchinference_operator.reconcile.deadlines import job_deadlines
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.mutable_spec import MutableSpec
from batchinference_operator.reconcile.state import Actions
from batchinference_operator.status.attempts import attempt_number, end_attempt, failed_attempts
from batchinference_operator.status.conditions import Summary
from batchinference_operator.status.job_status import StatusUpdate
from batchinference_operator.status.timestamps import to_rfc3339

POLL_SECONDS = 2.0
"""Requeue interval while a change is expected, and minimum poll interval of drivers, in seconds."""


def complete_job(job: JobView, update: StatusUpdate, now: datetime) -> Actions:
    """Return the actions that complete the job."""
    status = job.build_status(update, now)
    return Actions(status=end_attempt(status, "Succeeded", to_rfc3339(now)), requeue_after=0)


def fail_attempt(
    job: JobView,
    spec: MutableSpec,
    cause: Cause,
    message: str,
    now: datetime,
    update: StatusUpdate | None = None,
) -> Actions:
    """Return the actions that end the running attempt, with a retry or by failing the job.

    A later reconcile removes its resources, after the status records the end.
    """
    if not spec.retry.allows(cause, failed_attempts(job.status) + 1):
        return fail_job(job, cause, message, now, update)
    wait = backoff_seconds(spec.retry.backoff, failed_attempts(job.status) + 1)
    failure = f"attempt {attempt_number(job.status)} failed: {cause}: {message}"
    retrying = _with_outcome(Phase.RETRYING, Summary("Retrying", failure), update)
    status = job.build_status(retrying, now)
    status = end_attempt(status, "Failed", to_rfc3339(now), cause, message)
    at = to_rfc3339(now + timedelta(seconds=wait))
    return Actions(status={**status, "nextAttemptTime": at}, requeue_after=0)


def fail_job(
    job: JobView, cause: Cause, message: str, now: datetime, update: StatusUpdate | None = None
) -> Actions:
    """Return the actions that fail the job."""
    ended = _with_outcome(Phase.FAILED, Summary(cause.value, message, failed=True), update)
    status = job.build_status(ended, now)
    status = end_attempt(status, "Failed", to_rfc3339(now), cause, message)
    return Actions(status=status, requeue_after=0)


def fail_if_expired(
    job: JobView, spec: MutableSpec, now: datetime, update: StatusUpdate | None = None
) -> Actions | None:
    """Return the actions that fail a job if its `deadlines.total` or device hours are exceeded."""
    passed = [limit for limit in job_deadlines(job, spec, now) if limit.remaining <= 0]
    return fail_job(job, passed[0].cause, passed[0].message, now, update) if passed else None


def _with_outcome(phase: Phase, summary: Summary, update: StatusUpdate | None) -> StatusUpdate:
    """Return the update with another phase and summary, or a new one without observations."""
    return replace(update, phase=phase, summary=summary) if update else StatusUpdate(phase, summary)
