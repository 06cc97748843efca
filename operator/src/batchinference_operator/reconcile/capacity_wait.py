"""Measures how long an attempt waits for capacity, and chooses the hardware of the next attempt.

A choice is a combination of types of devices (`acceleratorType`) and a capacity type. An attempt
that waits too long for capacity ends, and the next attempt takes the next choice. After any other
end of an attempt, the next one takes the first choice. An attempt waits if Kueue has not admitted
it. It also waits if a worker group has a gated or unschedulable pod and no pod with a node. If the
job has devices, only pods with devices count. The status has the choice and the start of the wait.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

from batchinference.spec.causes import Cause
from batchinference.spec.durations import seconds_of
from batchinference_operator.reconcile.deadlines import Deadline
from batchinference_operator.reconcile.observed_and_actions import Observed
from batchinference_operator.status.attempts import Attempt, last_attempt, update_last
from batchinference_operator.status.job_status import Status, internal, with_internal
from batchinference_operator.status.pod_view import PodView
from batchinference_operator.status.ray_job_view import RayJobView
from batchinference_operator.status.timestamps import seconds_since, to_rfc3339, unix_seconds


def next_choice(status: Status) -> int:
    """Return the number of the hardware choice of the attempt that runs or starts next. After an
    attempt that ended with NoCapacity, it is the following choice; otherwise the first."""
    ended = [one for one in status.get("attempts", []) if "outcome" in one]
    if not ended or ended[-1].get("cause") != Cause.NO_CAPACITY:
        return 1
    return int(ended[-1].get("choice", {}).get("number", 0)) + 1


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
