"""One look at one job: from what was observed to what is to be done.

Nothing is remembered between two looks but what stands in the API server, so the operator may be
stopped at any point and go on from there. What must not be lost stands in the status before it is
acted upon: an attempt ends there before its RayJob is taken away.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from batchinference_operator.reconcile.beginning import begin, corrected, recorded, unrecorded
from batchinference_operator.reconcile.cleanup import clean_up
from batchinference_operator.reconcile.following import follow, has_ended
from batchinference_operator.reconcile.model import Actions, JobView, Observed
from batchinference_operator.reconcile.policies import Policies
from batchinference_operator.reconcile.settings import Settings
from batchinference_operator.reconcile.suspension import suspend
from batchinference_operator.reconcile.usage import charged
from batchinference_operator.status.attempts import is_open
from batchinference_operator.status.conditions import holds


def finished(job: JobView) -> bool:
    """Whether the job has come to its end and its status says so."""
    return holds(job.status, "Complete") or holds(job.status, "Failed")


def settled(job: JobView) -> bool:
    """Whether nothing more is to be found out about a job: it is finished, or being deleted."""
    return job.deleting or finished(job)


def reconcile(observed: Observed, settings: Settings, now: datetime) -> Actions:
    """What is to be done about a job."""
    job = observed.job
    policies = Policies.of(job.spec, settings.defaults.limits)
    if job.deleting:
        return Actions()  # what is created now, Kubernetes would have to delete again
    if finished(job):
        return corrected(job, now) or clean_up(observed, policies, now)
    if is_open(job.status):
        observed = replace(observed, job=replace(job, status=charged(observed, now)))
    return _decide(observed, policies, settings, now)


def _decide(observed: Observed, policies: Policies, settings: Settings, now: datetime) -> Actions:
    made = unrecorded(observed)
    if made is not None:
        observed = replace(observed, job=recorded(observed.job, now))
        if made.driver_started or made.ended:
            # its driver, and what befell its pods, are asked for once the status names it
            return Actions(status=observed.job.status, again_after=0)
    if policies.suspend and not has_ended(observed):
        return suspend(observed, now)
    if is_open(observed.job.status):
        return follow(observed, policies, settings, now)
    return begin(observed, policies, settings, now)
