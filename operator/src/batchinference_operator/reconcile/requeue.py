"""Decides when a running job is reconciled without an event, and when its status is written."""

from collections.abc import Iterable
from datetime import datetime

from batchinference.spec.status import PROCESSING_PHASES
from batchinference_operator.reconcile.state import Observed
from batchinference_operator.status.conditions import Summary, Waiting
from batchinference_operator.status.job_status import Status, internal, without
from batchinference_operator.status.ray_job import RayJobView
from batchinference_operator.status.timestamps import seconds_since

POLL_SECONDS = 2.0
"""Requeue interval while a change is expected, and minimum poll interval of drivers, in seconds."""

POLLS_PER_SECOND = 100.0
"""Maximum rate of driver polls. With many drivers, each driver is polled less often."""
IDLE_SECONDS = 30.0
"""Interval between reconciles of a job without events. Each answer of its driver is an event."""
QUEUED_SECONDS = 120.0
"""Interval of reading why Kueue queues a RayJob. Until there is a reason, the interval is the age
of the RayJob, up to this maximum."""
NO_PODS_SECONDS = 10.0
"""Interval of a job whose cluster has no pods. The reason may only be in Events, which the operator
does not watch."""
KUBERAY_SECONDS = 45.0
"""If a RayJob has no status or no pod for this number of seconds, KubeRay does not respond."""
WATCHED_SECONDS = 3600.0
"""Interval of a job that waits for KubeRay to create its cluster. The interval is long, because
there may be thousands of such jobs, and watches report their changes."""


def requeue_after(observed: Observed, ray_job: RayJobView, now: datetime) -> float:
    """Return the seconds until the next reconcile."""
    if ray_job.suspended:  # Kueue has no reason yet for a RayJob that was just created
        age = seconds_since(ray_job.created_at, now)
        unexplained = ray_job.name not in observed.messages and age < QUEUED_SECONDS
        return max(POLL_SECONDS, age) if unexplained else QUEUED_SECONDS
    silent = kuberay_silent_seconds(ray_job, now)
    if 0 <= silent < KUBERAY_SECONDS:
        return KUBERAY_SECONDS - silent
    if not ray_job.driver_started and not observed.pods:
        return NO_PODS_SECONDS if ray_job.awaiting_pods else WATCHED_SECONDS
    return IDLE_SECONDS


def kuberay_silent_seconds(ray_job: RayJobView, now: datetime) -> float:
    """Return the seconds for which KubeRay has not accepted a RayJob; -1 if accepted or queued."""
    accepted = ray_job.deployment_status or ray_job.cluster
    if accepted or ray_job.suspended or not ray_job.created_at:
        return -1.0
    return max(0.0, seconds_since(ray_job.created_at, now))


def not_responding(done: str, ray_job: RayJobView) -> Summary:
    """Return the summary of a job if KubeRay has not `done` its RayJob, such as "accepted"."""
    why = "it may be down, watch other namespaces or lack permissions. See its log"
    if ray_job.multikueue:
        why = "its queue is for MultiKueue, which does not copy its files. Use another queue"
    message = f"KubeRay has not {done} RayJob {ray_job.name}: {why}"
    return Summary(Waiting.KUBERAY_NOT_RESPONDING, message)


def deletion_problem(ray_jobs: Iterable[RayJobView], now: datetime) -> Summary | None:
    """Return a summary if an unfinished RayJob is being deleted for KUBERAY_SECONDS; else None."""
    for one in ray_jobs:
        waits = one.deleting and not one.ended
        if waits and seconds_since(one.deleted_at, now) >= KUBERAY_SECONDS:
            return not_responding("deleted", one)
    return None


def without_pods_seconds(observed: Observed, ray_job: RayJobView, now: datetime) -> float:
    """Return the seconds since KubeRay accepted a RayJob, if it has created no pod since; -1 if
    KubeRay has created a pod, or need not create one."""
    had_pods = observed.pods_of_attempt or observed.crashes or observed.disruptions
    if had_pods or not (ray_job.awaiting_pods and ray_job.driver_started_at):
        return -1.0
    return seconds_since(ray_job.driver_started_at, now)


def poll_interval(driver_count: int, polls_per_second: float = POLLS_PER_SECOND) -> float:
    """Return the seconds between two polls of a driver if there is this number of drivers."""
    return max(POLL_SECONDS, driver_count / polls_per_second)


WRITE_SECONDS = 5.0
"""Minimum seconds between two status writes that are not urgent (`_urgent_part`)."""
USAGE_SECONDS = 30.0
"""Minimum seconds between two status writes that change only usage, while no rows are processed.
Pods may take minutes to start, and usage changes with each pod."""
_DEFERRABLE_FIELDS = {
    *("progress", "stage", "counts", "warnings"),
    *("devices", "deviceSeconds", "cpuSeconds", "cost"),
}
_DEFERRABLE_BOOKKEEPING = {"progressTime", "usageTime", "pricedSeconds", "pricedCost"}
_DEFERRABLE_ATTEMPT_FIELDS = {"rows", "deviceSeconds", "cpuSeconds"}


def write_delay(before: Status, after: Status, since: float) -> float:
    """Return the seconds by which a status write can be delayed; 0 if it is urgent. `since` is the
    number of seconds since the last write. The next reconcile computes a delayed status again."""
    in_progress = (
        before.get("phase") == after.get("phase") and after.get("phase") in PROCESSING_PHASES
    )
    # while rows are processed, reasons can wait: they are about single workers and change often
    condition_fields = {"message", "reason"} if in_progress else {"message"}
    if _urgent_part(before, condition_fields) != _urgent_part(after, condition_fields):
        return 0.0
    usage_only = not in_progress and _urgent_part(before, set()) == _urgent_part(after, set())
    interval = USAGE_SECONDS if usage_only else WRITE_SECONDS
    return interval - min(max(since, 0.0), interval)


def _urgent_part(status: Status, condition_fields: set[str]) -> Status:
    """Return the part of the status to write at once, without `condition_fields` of conditions."""
    urgent = without(status, *_DEFERRABLE_FIELDS)
    urgent["operator"] = without(internal(status), *_DEFERRABLE_BOOKKEEPING)
    for name, deferrable in (
        ("attempts", _DEFERRABLE_ATTEMPT_FIELDS),
        ("conditions", condition_fields),
    ):
        urgent[name] = [without(one, *deferrable) for one in status.get(name, [])]
    return urgent
