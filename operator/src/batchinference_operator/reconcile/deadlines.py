"""Computes deadlines of jobs and attempts, the limit on device hours, and the wait for capacity.

A choice is a combination of types of devices (`acceleratorType`) and a capacity type. An attempt
that waits too long for capacity ends, and the next attempt takes the next choice. After any other
end of an attempt, the next one takes the first choice. An attempt waits if Kueue has not admitted
it, or if a worker group has a gated or unschedulable pod and no pod with a node. If the job has
devices, only pods with devices count. The status has the choice and the start of the wait.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf

from batchinference.rendering import KubeRayDeadlines
from batchinference.spec.causes import Cause
from batchinference.spec.durations import seconds_of, time_of
from batchinference_operator.reconcile.job_view import JobView, MutableSpec
from batchinference_operator.reconcile.state import Observed
from batchinference_operator.status.attempts import Attempt, last_attempt, update_last
from batchinference_operator.status.job_status import Status, internal, with_internal
from batchinference_operator.status.pods import PodView
from batchinference_operator.status.ray_job import RayJobView
from batchinference_operator.status.timestamps import seconds_since, to_rfc3339, unix_seconds


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
    all rows are finished, or the operator has just started and has not polled the driver yet.
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


GAP_SECONDS = 60.0
"""Seconds for which a waiting group may have no waiting pod, because Ray's autoscaler replaces pods
that wait for long."""


def track_waiting(status: Status, observed: Observed, ray_job: RayJobView, now: datetime) -> Status:
    """Return the status with the worker group that waits for capacity, if any. The group is kept
    until one of its pods has a node, or it had no waiting pod for GAP_SECONDS."""
    attempt = last_attempt(status)
    if ray_job.choice is None:
        return status
    pods, former = _pods_of_choice(observed, ray_job), attempt.get("waiting")
    with_node = {pod.group for pod in pods if pod.scheduled_at is not None}
    waiting = [pod for pod in pods if _waits(pod) and pod.group not in with_node]
    if former is not None and former["group"] not in with_node:
        gap_since = internal(status).get("gapSince", to_rfc3339(now))
        if seconds_since(gap_since, now) <= GAP_SECONDS:
            waits = any(pod.group == former["group"] for pod in waiting)
            return with_internal(status, gapSince=None if waits else gap_since)
    status = with_internal(status, gapSince=None)
    if not waiting:
        return update_last(status, waiting=None)
    first = min(waiting, key=lambda pod: pod.created_at)
    admitted = unix_seconds(attempt.get("admittedTime", "1970-01-01T00:00:00Z"))
    since = datetime.fromtimestamp(max(first.created_at, admitted), UTC)
    return update_last(status, waiting={"group": first.group, "since": to_rfc3339(since)})


def capacity_deadline(
    observed: Observed, ray_job: RayJobView, now: datetime, why: str
) -> Iterator[Deadline]:
    """Yield the deadline after which the next attempt takes the next choice, if the attempt waits
    and there is a next choice. `why` says why the attempt waits."""
    attempt = last_attempt(observed.job.status)
    choice, since = ray_job.choice, _waiting_since(observed, ray_job, attempt)
    if choice is None or choice.after is None or since is None:
        return
    message = f"no capacity for {choice.name} within cluster.fallback.after {choice.after}: {why}"
    left = seconds_of(choice.after) - seconds_since(since, now)
    yield Deadline(left, Cause.NO_CAPACITY, message)


def _waiting_since(observed: Observed, ray_job: RayJobView, attempt: Attempt) -> str | None:
    """Return when the wait of the attempt began; None if it does not wait now."""
    if "queuedTime" in attempt:
        return str(attempt["queuedTime"])
    group = attempt.get("waiting", {}).get("group")
    waits = any(pod.group == group and _waits(pod) for pod in _pods_of_choice(observed, ray_job))
    return str(attempt["waiting"]["since"]) if waits else None


def _pods_of_choice(observed: Observed, ray_job: RayJobView) -> list[PodView]:
    """Return the live workers to which the choice applies: those with devices, or all workers if
    the RayJob has no devices."""
    workers = [pod for pod in observed.pods_of_attempt if not pod.is_head and pod.ended_at is None]
    return [pod for pod in workers if not pod.deleting and (pod.devices or not ray_job.max_devices)]


def _waits(pod: PodView) -> bool:
    unschedulable = pod.problem is not None and pod.problem.cause == Cause.UNSCHEDULABLE
    return pod.scheduled_at is None and (pod.gated or unschedulable)
