"""Notices that KubeRay does nothing with a RayJob, for instance because it is down."""

from collections.abc import Iterable
from datetime import datetime

from batchinference_operator.reconcile.observed_and_actions import Observed
from batchinference_operator.status.conditions import Summary, Waiting
from batchinference_operator.status.ray_job_view import RayJobView
from batchinference_operator.status.timestamps import seconds_since

KUBERAY_SECONDS = 45.0
"""If a RayJob has no status or no pod for this number of seconds, KubeRay does not respond."""


def kuberay_silent_seconds(ray_job: RayJobView, now: datetime) -> float:
    """Return the seconds for which KubeRay has not accepted a RayJob; -1 if accepted or queued."""
    accepted = ray_job.deployment_status or ray_job.cluster
    if accepted or ray_job.suspended or not ray_job.created_at:
        return -1.0
    return max(0.0, seconds_since(ray_job.created_at, now))


def _not_responding(done: str, ray_job: RayJobView) -> Summary:
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
            return _not_responding("deleted", one)
    return None


def _without_pods_seconds(observed: Observed, ray_job: RayJobView, now: datetime) -> float:
    """Return the seconds since KubeRay accepted a RayJob for which it has created no pod. The
    result is -1 if KubeRay has created a pod, or need not create one."""
    had_pods = observed.pods_of_attempt or observed.crashes or observed.disruption
    if had_pods or not (ray_job.awaiting_pods and ray_job.driver_started_at):
        return -1.0
    return seconds_since(ray_job.driver_started_at, now)


def kuberay_problem(observed: Observed, ray_job: RayJobView, now: datetime) -> Summary | None:
    """Return a summary if KubeRay has done nothing with a RayJob for KUBERAY_SECONDS, else None."""
    if kuberay_silent_seconds(ray_job, now) >= KUBERAY_SECONDS:
        return _not_responding("accepted", ray_job)
    late = _without_pods_seconds(observed, ray_job, now) >= KUBERAY_SECONDS
    return _not_responding("created the pods of", ray_job) if late else None
