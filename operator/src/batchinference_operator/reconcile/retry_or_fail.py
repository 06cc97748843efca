"""Ends an attempt: retries it after a backoff, or fails the job."""

from datetime import datetime, timedelta

from batchinference.spec.causes import Cause
from batchinference.spec.durations import seconds_of
from batchinference.spec.status import Phase
from batchinference_operator.reconcile.deadlines import job_deadlines
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.mutable_spec import MutableSpec
from batchinference_operator.reconcile.observed_and_actions import Actions
from batchinference_operator.status.attempts import attempt_number, end_attempt, failed_attempts
from batchinference_operator.status.conditions import Summary
from batchinference_operator.status.failure_cause import Failure
from batchinference_operator.status.job_status import StatusUpdate
from batchinference_operator.status.timestamps import to_rfc3339


def fail_attempt(
    job: JobView, spec: MutableSpec, failure: Failure, now: datetime, update: StatusUpdate | None
) -> Actions:
    """Return the actions that end the running attempt, and retry or fail the job. A later reconcile
    may delete the attempt's RayJob, after the end is recorded in the status."""
    cause, message = failure
    no_capacity = cause == Cause.NO_CAPACITY  # such an end is not counted as a failure
    failures = failed_attempts(job.status) + (not no_capacity)
    if not spec.retry.allows(cause, failures):
        return fail_job(job, failure, now, update)
    backoff = seconds_of(spec.retry.backoff.initial) * 2 ** min(failures - 1, 32)
    wait = 0 if no_capacity else min(backoff, seconds_of(spec.retry.backoff.max))
    why = f"attempt {attempt_number(job.status)} failed: {cause}: {message}"
    retrying = StatusUpdate(Phase.RETRYING, Summary("Retrying", why))
    status = job.build_status(retrying.after(update), now)
    status = end_attempt(status, "Failed", to_rfc3339(now), cause, message)
    at = to_rfc3339(now + timedelta(seconds=wait))
    return Actions(status={**status, "nextAttemptTime": at}, requeue_after=0)


def fail_job(job: JobView, failure: Failure, now: datetime, update: StatusUpdate | None) -> Actions:
    """Return the actions that fail the job."""
    cause, message = failure
    failed = StatusUpdate(Phase.FAILED, Summary(cause.value, message, failed=True))
    status = job.build_status(failed.after(update), now)
    status = end_attempt(status, "Failed", to_rfc3339(now), cause, message)
    return Actions(status=status, requeue_after=0)


def fail_if_expired(
    job: JobView, spec: MutableSpec, now: datetime, update: StatusUpdate | None = None
) -> Actions | None:
    """Return the actions that fail a job after `deadlines.total` or its device hours, else None."""
    passed = [limit for limit in job_deadlines(job, spec, now) if limit.remaining <= 0]
    return fail_job(job, (passed[0].cause, passed[0].message), now, update) if passed else None
