"""Suspends a job, and measures for how long it was suspended."""

from dataclasses import replace
from datetime import datetime

from batchinference.spec.lifecycle import Ttl
from batchinference.spec.status import Phase
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.kuberay_silence import deletion_problem
from batchinference_operator.reconcile.observed_and_actions import Actions, Observed
from batchinference_operator.reconcile.ray_job_deletion import end_ray_jobs
from batchinference_operator.reconcile.ttl import with_ttl_of_cancelled
from batchinference_operator.status.attempts import end_attempt, is_running
from batchinference_operator.status.conditions import Summary, find_condition
from batchinference_operator.status.job_status import Status, StatusUpdate, internal, with_internal
from batchinference_operator.status.timestamps import seconds_since, to_rfc3339

STOP_POLL_SECONDS = 2.0
"""Interval of checking whether a driver that was asked to stop has ended."""
SUSPEND_POLL_SECONDS = 5.0
"""Interval of checking whether all RayJobs and pods are gone."""


def suspend(observed: Observed, ttl: Ttl, now: datetime) -> Actions:
    """Return the actions that stop the driver and delete all RayJobs that hold resources.

    The first reconcile only records the suspension in the status, so that the deletion does not
    count as a failure.
    """
    job = observed.job
    if is_running(job.status):
        status = end_attempt(_suspending_status(job, now), "Suspended", to_rfc3339(now))
        return Actions(status=status, requeue_after=0)
    end = end_ray_jobs(observed, observed.live_ray_jobs, now)
    live = any(not ray_job.ended for ray_job in observed.owned_ray_jobs)
    if live or any(pod.ended_at is None for pod in observed.pods):
        after = STOP_POLL_SECONDS if end.stop_drivers else SUSPEND_POLL_SECONDS
        problem = deletion_problem(observed.owned_ray_jobs, now)
        return replace(end, status=_suspending_status(job, now, problem), requeue_after=after)
    summary = Summary(
        "Suspended", "suspended by spec.suspend; set it to false to resume", suspended=True
    )
    status = job.build_status(StatusUpdate(Phase.SUSPENDED, summary), now)
    suspended = Actions(release_clusters=end.release_clusters, status=status)
    return with_ttl_of_cancelled(suspended, job, ttl, now) if job.cancelled else suspended


def _suspending_status(job: JobView, now: datetime, problem: Summary | None = None) -> Status:
    summary = Summary("Suspending", "the RayJob and its cluster are being deleted")
    update = StatusUpdate(Phase.SUSPENDING, problem or summary)
    return job.with_status(add_suspended_time(job, now)).build_status(update, now)


def add_suspended_time(job: JobView, now: datetime) -> Status:
    """Return the status with the time since the suspension added to `suspendedSeconds`, if the job
    was suspended."""
    before = find_condition(job.status, "Suspended")
    if before.get("status") != "True":
        return job.status
    # not negative, even if the clock was ahead when the job was suspended
    seconds = max(0, round(seconds_since(before["lastTransitionTime"], now)))
    counted = internal(job.status).get("suspendedSeconds", 0)
    return with_internal(job.status, suspendedSeconds=counted + seconds)
