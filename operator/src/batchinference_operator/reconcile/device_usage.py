"""Measures the device seconds and CPU seconds of a job.

Each reconcile of a running attempt adds the usage since the previous reconcile, so deleted pods are
included. Not included are pods that come and go while the operator is down, and usage after the end
of the attempt.
"""

from datetime import datetime
from decimal import Decimal

from batchinference.spec.progress import MAX_ROWS
from batchinference_operator.reconcile.observed_and_actions import Observed
from batchinference_operator.status.attempts import Attempt, last_attempt, update_last
from batchinference_operator.status.job_status import Status, internal, with_internal, without
from batchinference_operator.status.pod_view import PodView
from batchinference_operator.status.ray_job_view import RayJobView
from batchinference_operator.status.timestamps import to_rfc3339, unix_seconds


def add_usage(observed: Observed, now: datetime) -> Status:
    """Return the status with the current number of devices. The usage since `usageTime` is added
    to the usage of the job and of the running attempt."""
    status = without(observed.job.status, "devices")
    if devices := current_devices(observed):
        status["devices"] = devices
    until = unix_seconds(to_rfc3339(now))  # rounded like usageTime, where the next interval starts
    pods, ray_job = observed.pods_of_attempt, observed.ray_job
    last = last_attempt(status)
    # without its RayJob, usage is counted from the start of the attempt
    first = last.get("startTime") if ray_job is None else None
    counted = internal(status).get("usageTime", first)
    since = unix_seconds(counted) if counted else 0.0
    seconds = _usage_seconds([(_devices_of(pod, ray_job), pod) for pod in pods], since, until)
    used = {
        "deviceSeconds": min(seconds, _max_device_seconds(ray_job, last, since, until)),
        "cpuSeconds": _usage_seconds([(pod.cpus, pod) for pod in pods], since, until),
    }
    if not any(used.values()):
        return status
    status = with_internal(status, usageTime=to_rfc3339(now), **_priced(status, last, used))
    return update_last({**status, **_incremented(status, used)}, **_incremented(last, used))


def _priced(status: Status, attempt: Attempt, used: dict[str, int]) -> Status:
    """Return the sum and the cost of the device seconds of attempts with their own price. What the
    running attempt has `used` is included. Empty if the running attempt has no own price."""
    if (price := attempt.get("choice", {}).get("deviceHour")) is None:
        return {}
    known, seconds = internal(status), used["deviceSeconds"]
    cost = Decimal(known.get("pricedCost", 0)) + seconds * Decimal(price) / 3600
    return {"pricedSeconds": known.get("pricedSeconds", 0) + seconds, "pricedCost": f"{cost:.9f}"}


def current_devices(observed: Observed) -> int:
    """Return the number of devices that the pods of the last attempt have now."""
    scheduled = [pod for pod in observed.pods_of_attempt if pod.scheduled_at is not None]
    return sum(_devices_of(pod, observed.ray_job) for pod in scheduled if pod.ended_at is None)


def _devices_of(pod: PodView, ray_job: RayJobView | None) -> int:
    """Return the number of devices in the label of a pod. Users may change the label, so the result
    is at most the number of the largest planned pod."""
    if ray_job is None or ray_job.max_devices is None:
        return pod.devices
    return min(pod.devices, ray_job.max_devices_per_pod)


def _max_device_seconds(
    ray_job: RayJobView | None, attempt: Attempt, since: float, until: float
) -> int:
    """Return the device seconds if all planned pods run in an interval; MAX_ROWS if unknown."""
    if ray_job is None or ray_job.max_devices is None:
        return MAX_ROWS
    created = attempt.get("startTime") or ray_job.created_at
    start = max(since, unix_seconds(created)) if created else since
    return max(0, round(ray_job.max_devices * (until - start)))


def _usage_seconds(pods: list[tuple[float, PodView]], since: float, until: float) -> int:
    """Return the sum, over all pods, of the amount times the seconds with a node in an interval.

    The result is the difference of two rounded sums, so that the rounding errors of short intervals
    do not add up.
    """
    before, after = (
        sum(amount * _seconds_with_node(pod, end) for amount, pod in pods) for end in (since, until)
    )
    return max(0, round(after) - round(before))


def _incremented(counts: Status, used: dict[str, int]) -> dict[str, int]:
    return {name: counts.get(name, 0) + seconds for name, seconds in used.items()}


def _seconds_with_node(pod: PodView, until: float) -> float:
    """Return the seconds for which a pod had a node before `until`, in seconds since 1970."""
    if pod.scheduled_at is None:
        return 0.0
    ended = until if pod.ended_at is None else pod.ended_at
    return max(0.0, min(ended, until) - pod.scheduled_at)
