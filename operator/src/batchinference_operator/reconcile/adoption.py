"""Adopts a RayJob that was created for the next attempt before the status recorded the attempt."""

from datetime import datetime

from batchinference.spec.status import PROCESSING_PHASES, Phase
from batchinference_operator.reconcile.attempt_objects import planning_status
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.observed_and_actions import Observed
from batchinference_operator.reconcile.suspend import add_suspended_time
from batchinference_operator.status.attempts import add_attempt, is_running
from batchinference_operator.status.ray_job_view import RayJobView


def find_unadopted(observed: Observed) -> RayJobView | None:
    """Return the RayJob of the next attempt if it exists, but the status lacks this attempt."""
    job = observed.job
    ray_job = observed.ray_jobs.get(job.next_names.ray_job)
    created = ray_job is not None and ray_job.owner_uid == job.uid and not ray_job.deleting
    return ray_job if created and not is_running(job.status) else None


def adopt(job: JobView, now: datetime) -> JobView:
    """Return the job with the next attempt, whose RayJob already exists, added to its status."""
    job = job.with_status(add_suspended_time(job, now))
    names = job.next_names
    if job.status.get("phase") in (Phase.STARTING, *PROCESSING_PHASES):  # set by an older operator
        return job.with_status(add_attempt(job.status, names))
    return job.with_status(planning_status(job, names, now))
