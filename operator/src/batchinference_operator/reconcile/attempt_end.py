"""Ends an attempt, and completes, retries or fails the job."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from batchinference.plan.groups import HEAD_GROUP
from batchinference.spec.causes import Cause
from batchinference.spec.durations import seconds_of
from batchinference.spec.lifecycle import Backoff, OutOfMemory
from batchinference.spec.phases import Phase
from batchinference.spec.quantities import memory_bytes, memory_quantity
from batchinference_operator.reconcile.deadlines import job_deadlines
from batchinference_operator.reconcile.job_view import JobView, MutableSpec
from batchinference_operator.reconcile.state import Actions, Observed
from batchinference_operator.status.attempts import (
    attempt_number,
    end_attempt,
    failed_attempts,
    update_last,
)
from batchinference_operator.status.conditions import Summary
from batchinference_operator.status.failure_cause import head_ran_out_of_memory
from batchinference_operator.status.job_status import Status, StatusUpdate
from batchinference_operator.status.ray_job import RayJobView
from batchinference_operator.status.timestamps import seconds_since, to_rfc3339

POLL_SECONDS = 2.0
"""Requeue interval while a change is expected, and minimum poll interval of drivers, in seconds."""


def end_as_complete(job: JobView, update: StatusUpdate, now: datetime) -> Actions:
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
    no_capacity = cause == Cause.NO_CAPACITY  # not a failure of the attempt
    failures = failed_attempts(job.status) + (not no_capacity)
    if not spec.retry.allows(cause, failures):
        return fail_job(job, cause, message, now, update)
    wait = 0.0 if no_capacity else backoff_seconds(spec.retry.backoff, failures)
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


def backoff_seconds(backoff: Backoff, failures: int) -> float:
    """Return the backoff in seconds before the attempt after this number of failures."""
    longest = seconds_of(backoff.max)
    return float(min(seconds_of(backoff.initial) * 2 ** min(failures - 1, 32), longest))


def backoff_left(job: JobView, now: datetime) -> float:
    """Return the seconds until the next attempt may start; 0 for a resumed job."""
    resumed = job.status.get("phase") in (Phase.SUSPENDING, Phase.SUSPENDED)
    if resumed or "nextAttemptTime" not in job.status:
        return 0.0
    return -seconds_since(job.status["nextAttemptTime"], now)


def record_out_of_memory(
    job: JobView, observed: Observed, ray_job: RayJobView | None, cause: Cause
) -> JobView:
    """Return the job with the groups that ran out of memory, if this is the cause of the failure.

    If no pod was killed, for instance because Ray killed a worker process first, the group is
    unknown. Then all worker groups are recorded. If the driver was killed, it is the head.
    """
    if cause != Cause.OUT_OF_MEMORY or ray_job is None or not ray_job.memory:
        return job
    memory = dict(ray_job.memory)
    killed = {one.group for one in observed.disruptions if one.cause == Cause.OUT_OF_MEMORY}
    if head_ran_out_of_memory(ray_job, observed.crashes):
        killed.add(HEAD_GROUP)
    groups = killed & memory.keys() or memory.keys() - {HEAD_GROUP}
    found = {group: memory[group] for group in sorted(groups)}
    return job.with_status(update_last(job.status, {"outOfMemory": found}))


def memory_of_next_attempt(status: Status, policy: OutOfMemory | None) -> dict[str, str]:
    """Return the new memory of each group that ran out of memory in an earlier attempt."""
    if policy is None:
        return {}
    largest, found = memory_bytes(policy.max_memory), dict[str, float]()
    for attempt in status.get("attempts", []):
        # `memory` counts too: the attempts that ran out of memory may no longer be in the status
        for field, factor in (("memory", 1.0), ("outOfMemory", policy.memory_factor)):
            for group, memory in attempt.get(field, {}).items():
                wanted = min(memory_bytes(memory) * factor, largest)
                found[group] = max(wanted, found.get(group, 0))
    return {group: memory_quantity(size) for group, size in found.items()}
