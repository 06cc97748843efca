"""Finds the RayJobs that a job owns, and computes their names."""

from __future__ import annotations

from batchinference.rendering import Names
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.state import Observed
from batchinference_operator.status.attempts import attempt_number, is_running
from batchinference_operator.status.ray_job import RayJobView


def names_of(job: JobView, attempt: int) -> Names:
    """Return the names of the objects of an attempt."""
    return Names(job.name, job.uid, attempt)


def ray_job_names(job: JobView, last: int) -> set[str]:
    """Return the names of the RayJobs of the first `last` attempts."""
    return {names_of(job, number).ray_job for number in range(1, last + 1)}


def names_of_last_attempt(job: JobView) -> Names:
    """Return the names of the objects of the last attempt."""
    return names_of(job, attempt_number(job.status))


def next_names(job: JobView) -> Names:
    """Return the names of the objects of the next attempt."""
    return names_of(job, attempt_number(job.status) + 1)


def attempt_ray_job(observed: Observed) -> RayJobView | None:
    """Return the RayJob that has the name of the last attempt's RayJob, whoever owns it."""
    return observed.ray_jobs.get(names_of_last_attempt(observed.job).ray_job)


def running_ray_job(observed: Observed) -> RayJobView | None:
    """Return the RayJob of the running attempt if this job owns it."""
    job, ray_job = observed.job, attempt_ray_job(observed)
    return ray_job if is_running(job.status) and ray_job and ray_job.owner_uid == job.uid else None


def owned_ray_jobs(observed: Observed) -> list[RayJobView]:
    """Return the RayJobs of this job, without RayJobs of an earlier job with the same name."""
    uid = observed.job.uid
    return [ray_job for ray_job in observed.ray_jobs.values() if ray_job.owner_uid == uid]


def live_ray_jobs(observed: Observed) -> list[RayJobView]:
    """Return the RayJobs of this job that are not being deleted."""
    return [ray_job for ray_job in owned_ray_jobs(observed) if not ray_job.deleting]


def ray_jobs_of_earlier_attempts(observed: Observed) -> tuple[RayJobView, ...]:
    """Return the RayJobs of earlier attempts that have not ended. They are normally deleted, but a
    late request of a former leader may create one again."""
    names = ray_job_names(observed.job, attempt_number(observed.job.status) - 1)
    return tuple(one for one in live_ray_jobs(observed) if one.name in names and not one.ended)


def stuck_in_deletion(observed: Observed) -> tuple[RayJobView, ...]:
    """Return the RayJobs that are being deleted although their pods are not: KubeRay is down."""
    clusters = {pod.cluster for pod in observed.pods if pod.ended_at is None and not pod.deleting}
    deleting = (ray_job for ray_job in owned_ray_jobs(observed) if ray_job.deleting)
    return tuple(ray_job for ray_job in deleting if ray_job.cluster in clusters)


def holds_resources(observed: Observed) -> bool:
    """Return whether a RayJob or a pod of this job has not ended."""
    live = any(not ray_job.ended for ray_job in owned_ray_jobs(observed))
    return live or any(pod.ended_at is None for pod in observed.pods)
