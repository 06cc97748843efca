"""Computes the deadlines of jobs and attempts, and the limit on device hours."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from math import inf

from batchinference.rendering import KubeRayDeadlines
from batchinference.spec.causes import Cause
from batchinference.spec.durations import seconds_of, time_of
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.mutable_spec import MutableSpec
from batchinference_operator.status.attempts import last_attempt
from batchinference_operator.status.job_status import internal
from batchinference_operator.status.ray_job_view import RayJobView
from batchinference_operator.status.timestamps import seconds_since


@dataclass(frozen=True)
class Deadline:
    """A deadline or limit of a job or an attempt, and the failure if it is exceeded."""

    remaining: float
    """The seconds until the deadline; negative after it."""
    cause: Cause
    message: str


def job_deadlines(
    job: JobView, spec: MutableSpec, now: datetime, devices: int = 0
) -> Iterator[Deadline]:
    """Yield the deadlines for all attempts of a job together. `devices` is the number of devices
    that the job uses now."""
    limit = spec.deadlines.total
    if limit is not None:
        suspended = internal(job.status).get("suspendedSeconds", 0)
        elapsed = seconds_since(job.created_at, now) - suspended
        message = f"the job has not ended within deadlines.total {limit}"
        yield Deadline(seconds_of(limit) - elapsed, Cause.DEADLINE_EXCEEDED, message)
    hours = spec.limits.device_hours
    if hours is not None:
        left = hours * 3600 - job.status.get("deviceSeconds", 0)
        message = (
            f"the job has used the {hours:g} device hours that cluster.limits.deviceHours allows"
        )
        remaining = left if left <= 0 else max(1.0, left / devices) if devices else inf
        yield Deadline(remaining, Cause.LIMIT_EXCEEDED, f"{message}; the written output is kept")


def attempt_deadlines(
    job: JobView, spec: MutableSpec, now: datetime, why: str, *, awaits_rows: bool = True
) -> Iterator[Deadline]:
    """Yield the deadlines of the running attempt, unless Kueue queues the attempt.

    `why` explains why no row is finished. Without `awaits_rows`, there are no deadlines for rows:
    all rows are finished, or the restarted operator has not polled the driver yet.
    """
    attempt, limits, status = last_attempt(job.status), spec.deadlines, job.status
    if "startTime" not in attempt or "queuedTime" in attempt:
        return
    elapsed = seconds_since(str(attempt.get("admittedTime", attempt["startTime"])), now)
    if limits.active is not None:
        number = attempt["number"]
        message = f"attempt {number} has not ended within deadlines.active {limits.active}"
        yield Deadline(seconds_of(limits.active) - elapsed, Cause.DEADLINE_EXCEEDED, message)
    if not awaits_rows:
        return
    last = internal(status).get("progressTime")
    if last is None and limits.pending is not None:
        message = f"no row was finished within deadlines.pending {limits.pending}: {why}"
        yield Deadline(seconds_of(limits.pending) - elapsed, Cause.DEADLINE_EXCEEDED, message)
    if last is not None and limits.stall is not None:
        message = f"no row was finished for deadlines.stall {limits.stall}, since {last}: {why}"
        yield Deadline(seconds_of(limits.stall) - seconds_since(last, now), Cause.STALLED, message)


def ray_deadlines(job: JobView, spec: MutableSpec, ray_job: RayJobView) -> KubeRayDeadlines:
    """Return when KubeRay must end the RayJob and delete its cluster if the operator does not."""
    attempt, queued = last_attempt(job.status), bool(ray_job.queue)
    start, admitted = (time_of(attempt.get(field, "")) for field in ("startTime", "admittedTime"))
    waited = max(0, round((admitted - start).total_seconds())) if start and admitted else 0
    # after the first finished row, gated pods do not queue the attempt again (`is_gated`)
    admitted_for_good = not queued or "progressTime" in internal(job.status)
    counting = admitted_for_good and "queuedTime" not in attempt
    times = spec.deadlines, spec.ttl
    return KubeRayDeadlines.of(*times, queued=queued, counting=counting, waited=waited)
