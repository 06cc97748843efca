"""Adopts a RayJob that was created but is not in the status yet.

This is the second step of every attempt: one reconcile creates the objects, and the next one
records them in the status. It also continues an interrupted start.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from batchinference.spec.phases import PROCESSING_PHASES, Phase
from batchinference_operator.reconcile.attempt_objects import planning_status
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.owned import next_names
from batchinference_operator.reconcile.state import Observed
from batchinference_operator.reconcile.suspend import add_suspended_time
from batchinference_operator.status.attempts import add_attempt, is_running
from batchinference_operator.status.ray_job import RayJobView


def find_unadopted(observed: Observed) -> RayJobView | None:
    """Return the RayJob of the next attempt if it exists but is not in the status yet."""
    job = observed.job
    ray_job = observed.ray_jobs.get(next_names(job).ray_job)
    created = ray_job is not None and ray_job.owner_uid == job.uid and not ray_job.deleting
    return ray_job if created and not is_running(job.status) else None


def adopt(job: JobView, now: datetime) -> JobView:
    """Return the job with the attempt whose RayJob already exists."""
    job = replace(job, status=add_suspended_time(job, now))
    names = next_names(job)
    # an older operator wrote such a status
    if job.status.get("phase") in (Phase.STARTING, *PROCESSING_PHASES):
        return replace(job, status=add_attempt(job.status, names))
    return replace(job, status=planning_status(job, names, now))
