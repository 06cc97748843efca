"""Deletes the RayJobs of suspended and of earlier attempts, and of deleted jobs."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from batchinference.spec.lifecycle import STOP_SECONDS
from batchinference.spec.status import Phase
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.kuberay_silence import deletion_problem
from batchinference_operator.reconcile.observed_and_actions import Actions, Observed
from batchinference_operator.reconcile.requeue import POLL_SECONDS
from batchinference_operator.status.attempts import attempt_number, last_attempt
from batchinference_operator.status.job_status import StatusUpdate
from batchinference_operator.status.ray_job_view import RayJobView
from batchinference_operator.status.timestamps import seconds_since


def end_ray_jobs(observed: Observed, ray_jobs: list[RayJobView], now: datetime) -> Actions:
    """Return the actions that stop drivers that may still commit, and delete other RayJobs that
    continue or are stuck in deletion. Retained clusters of ended RayJobs are released."""
    live = [ray_job for ray_job in ray_jobs if not ray_job.ended]
    stop = tuple(one for one in live if _may_commit(observed.job, one, now))
    delete = (one for one in live if one not in stop)
    release = tuple(one for one in ray_jobs if one.ended and one.cluster_retained)
    return Actions(stop, (*delete, *observed.stuck_in_deletion), release_clusters=release)


def _may_commit(job: JobView, ray_job: RayJobView, now: datetime) -> bool:
    """Return whether the driver of a suspended attempt runs and may commit what it has computed."""
    attempt = last_attempt(job.status)
    if not ray_job.driver_running or attempt.get("outcome") != "Suspended":
        return False
    return seconds_since(attempt["completionTime"], now) < STOP_SECONDS


POD_TERMINATION_SECONDS = 60.0
"""Maximum seconds for which the next attempt waits for the end of pods of the previous one."""


def delete_previous_attempts(observed: Observed, job: JobView, now: datetime) -> Actions | None:
    """Return the actions that delete the clusters of ended attempts; None if none is left.

    The driver of a suspended attempt may commit before the deletion. Pods are awaited for at most
    POD_TERMINATION_SECONDS. A healthy node ends pods in this time, and a lost node does not report
    the end of its pods.
    """
    last = attempt_number(observed.job.status)
    previous = [one for one in observed.ray_jobs.values() if job.has_attempt(one.name, last)]
    deleting = any(one.deleting and not one.ended for one in previous)
    ray_jobs = [one for one in observed.live_ray_jobs if one in previous]
    left = any(not one.ended or one.cluster_retained for one in ray_jobs)
    if not (left or deleting or _pods_terminating(observed, now)):
        return None
    actions = replace(end_ray_jobs(observed, ray_jobs, now), requeue_after=POLL_SECONDS)
    if (problem := deletion_problem(previous, now)) is None:
        return actions
    phase = job.status.get("phase")  # missing or unknown if another program has edited the status
    update = StatusUpdate(Phase(phase) if phase in set(Phase) else Phase.PENDING, problem)
    return replace(actions, status=job.build_status(update, now))


def _pods_terminating(observed: Observed, now: datetime) -> bool:
    """Return whether the next attempt must wait for the end of pods of the previous one."""
    ended_at = last_attempt(observed.job.status).get("completionTime")
    # the end may be in the future, if the clock was ahead
    if ended_at is None or abs(seconds_since(ended_at, now)) >= POD_TERMINATION_SECONDS:
        return False
    return any(pod.ended_at is None for pod in observed.pods)


ORPHAN_SECONDS = 300.0
"""Seconds that KubeRay may take to delete the RayJobs of a deleted job."""


def end_ray_jobs_of_deleted_job(observed: Observed, now: datetime) -> Actions:
    """Return the actions for a job that is being deleted. Once the job is gone, Kubernetes deletes
    its RayJobs. If a finalizer keeps the job, they are deleted after ORPHAN_SECONDS, because the
    operator no longer applies the limits of the job."""
    if all(one.ended for one in observed.owned_ray_jobs):
        return Actions()
    left = ORPHAN_SECONDS - seconds_since(observed.job.deleted_at, now)
    if left > 0:
        return Actions(requeue_after=left)
    live = (one for one in observed.live_ray_jobs if not one.ended)
    late = end_orphans(observed.stuck_in_deletion, now)
    after = late.requeue_after or ORPHAN_SECONDS
    return Actions(delete_ray_jobs=(*live, *late.delete_ray_jobs), requeue_after=after)


def end_orphans(orphans: Sequence[RayJobView], now: datetime) -> Actions:
    """Return the actions for RayJobs that are deleted with their job. If KubeRay, which may be
    unavailable, has not deleted a RayJob after ORPHAN_SECONDS, the operator deletes it and its
    cluster."""
    left = [ORPHAN_SECONDS - seconds_since(one.deleted_at, now) for one in orphans]
    late = tuple(one for one, seconds in zip(orphans, left, strict=True) if seconds <= 0)
    waits = (seconds if seconds > 0 else ORPHAN_SECONDS for seconds in left)
    return Actions(delete_ray_jobs=late, requeue_after=min(waits, default=None))
