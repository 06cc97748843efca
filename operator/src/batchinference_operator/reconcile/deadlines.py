"""Deadlines of jobs and attempts, and the limit on GPU hours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from math import inf

from batchinference.rendering import Backstop
from batchinference.spec.causes import Cause
from batchinference.spec.durations import seconds_of
from batchinference.spec.times import time_of
from batchinference_operator.reconcile.clock import age
from batchinference_operator.reconcile.model import JobView
from batchinference_operator.reconcile.policies import Policies
from batchinference_operator.status.attempts import current
from batchinference_operator.status.observations import RayJobView


@dataclass(frozen=True)
class Deadline:
    """A deadline or limit. `left` is in seconds; after the deadline it is negative."""

    left: float
    cause: Cause
    message: str


def of_job(job: JobView, policies: Policies, now: datetime, gpus: int = 0) -> Iterator[Deadline]:
    """Yield the deadlines of the job over all attempts. `gpus` is how many GPUs it has now."""
    limit = policies.deadlines.total
    if limit is not None:
        spent = age(job.created_at, now) - job.status.get("suspendedSeconds", 0)
        words = f"the job has not ended within deadlines.total {limit}"
        yield Deadline(seconds_of(limit) - spent, Cause.DEADLINE_EXCEEDED, words)
    hours = policies.limits.gpu_hours
    if hours is not None:
        left = hours * 3600 - job.status.get("gpuSeconds", 0)
        words = f"the job has used the {hours:g} GPU hours that cluster.limits.gpuHours allows"
        lasts = left if left <= 0 else max(1.0, left / gpus) if gpus else inf
        yield Deadline(lasts, Cause.LIMIT_EXCEEDED, f"{words}; what it has written stays")


def of_attempt(
    job: JobView, policies: Policies, now: datetime, why: str, *, awaits_rows: bool = True
) -> Iterator[Deadline]:
    """Yield the deadlines of the running attempt. `why` is the reason why no row is finished.

    `awaits_rows` is false if all rows are finished or the driver cannot be reached.
    """
    attempt, limits, status = current(job.status), policies.deadlines, job.status
    if attempt is None or "startTime" not in attempt or "queuedTime" in attempt:
        return
    taken = age(str(attempt.get("admittedTime", attempt["startTime"])), now)
    if limits.active is not None:
        words = f"attempt {attempt['number']} has not ended within deadlines.active {limits.active}"
        yield Deadline(seconds_of(limits.active) - taken, Cause.DEADLINE_EXCEEDED, words)
    if not awaits_rows:
        return
    last = status.get("progressTime")
    if last is None and limits.pending is not None:
        words = f"no row was finished within deadlines.pending {limits.pending}: {why}"
        yield Deadline(seconds_of(limits.pending) - taken, Cause.DEADLINE_EXCEEDED, words)
    if last is not None and limits.stall is not None:
        words = f"no row was finished for deadlines.stall {limits.stall}, since {last}: {why}"
        yield Deadline(seconds_of(limits.stall) - age(last, now), Cause.STALLED, words)


def backstop_of(job: JobView, policies: Policies, seen: RayJobView) -> Backstop:
    """Return the deadlines after which KubeRay must end the RayJob of the running attempt."""
    attempt, queued = current(job.status) or {}, bool(seen.queue)
    began, admitted = (time_of(attempt.get(field, "")) for field in ("startTime", "admittedTime"))
    waited = max(0, round((admitted - began).total_seconds())) if began and admitted else 0
    # after the first row, gated pods are additional pods of an elastic job
    settled = not queued or "progressTime" in job.status
    counting = settled and "queuedTime" not in attempt
    return Backstop.of(policies.deadlines, queued=queued, counting=counting, waited=waited)
