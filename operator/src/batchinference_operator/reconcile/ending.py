"""Ends an attempt: with success, with a retry, or with the failure of the job."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from batchinference.spec.causes import Cause
from batchinference.spec.durations import seconds_of
from batchinference.spec.lifecycle import Backoff
from batchinference.spec.phases import Phase
from batchinference_operator.reconcile.clock import stamp
from batchinference_operator.reconcile.deadlines import of_job
from batchinference_operator.reconcile.model import Actions, JobView
from batchinference_operator.reconcile.policies import Policies
from batchinference_operator.status.attempts import closed, failed, number_of
from batchinference_operator.status.conditions import Verdict
from batchinference_operator.status.status import Finding, build_status

POLL_SECONDS = 2.0
"""How often a job is reconciled while a change is expected; also the minimum poll interval of a
driver."""


def succeeded(job: JobView, finding: Finding, now: datetime) -> Actions:
    status = build_status(job.status, job.generation, finding, stamp(now))
    return Actions(status=closed(status, "Succeeded", stamp(now)), again_after=0)


def attempt_failed(
    job: JobView,
    policies: Policies,
    cause: Cause,
    message: str,
    now: datetime,
    seen: Finding | None = None,
) -> Actions:
    """Return the actions that end the running attempt, with a retry or by failing the job.

    Its resources are removed by a later reconcile, after the status records the end.
    """
    if not policies.retry.allows(cause, failed(job.status) + 1):
        return job_failed(job, cause, message, now, seen)
    wait = pause(policies.retry.backoff, failed(job.status) + 1)
    words = f"attempt {number_of(job.status)} failed: {cause}: {message}"
    retrying = _found(Phase.RETRYING, Verdict("Retrying", words), seen)
    status = build_status(job.status, job.generation, retrying, stamp(now))
    status = closed(status, "Failed", stamp(now), cause, message)
    at = stamp(now + timedelta(seconds=wait))
    return Actions(status={**status, "nextAttemptTime": at}, again_after=0)


def job_failed(
    job: JobView, cause: Cause, message: str, now: datetime, seen: Finding | None = None
) -> Actions:
    """Return the actions that fail the job."""
    ended = _found(Phase.FAILED, Verdict(cause.value, message, failed=True), seen)
    status = build_status(job.status, job.generation, ended, stamp(now))
    status = closed(status, "Failed", stamp(now), cause, message)
    return Actions(status=status, again_after=0)


def job_out_of_time(
    job: JobView, policies: Policies, now: datetime, seen: Finding | None = None
) -> Actions | None:
    """Return the actions that fail a job if its `deadlines.total` or GPU hours are exceeded."""
    passed = [limit for limit in of_job(job, policies, now) if limit.left <= 0]
    return job_failed(job, passed[0].cause, passed[0].message, now, seen) if passed else None


def _found(phase: Phase, verdict: Verdict, seen: Finding | None) -> Finding:
    """Return the finding at the end of an attempt, with everything that was observed of it."""
    return replace(seen, phase=phase, verdict=verdict) if seen else Finding(phase, verdict)


def pause(backoff: Backoff, failures: int) -> float:
    """Return the backoff in seconds before the attempt that follows this number of failures."""
    longest = seconds_of(backoff.max)
    return float(min(seconds_of(backoff.initial) * 2 ** min(failures - 1, 32), longest))
