"""One reconcile of one job: computes the actions from the observation.

Between two reconciles, all state is in the API server. The operator may therefore stop at any point
and continue from there. The status records a decision before the operator acts on it: an attempt
ends in the status before its RayJob is removed.
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
    """Return whether the status says that the job is complete or failed."""
    return holds(job.status, "Complete") or holds(job.status, "Failed")


def settled(job: JobView) -> bool:
    """Return whether a job is finished or being deleted, so that its state needs no live reads."""
    return job.deleting or finished(job)


def reconcile(observed: Observed, settings: Settings, now: datetime) -> Actions:
    """Return the actions for a job."""
    job = observed.job
    policies = Policies.of(job.spec, settings.defaults.limits)
    if job.deleting:
        return Actions()  # Kubernetes would have to delete anything that is created now
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
            # its driver and the losses of its pods are observed only after the status names it
            return Actions(status=observed.job.status, again_after=0)
    if policies.suspend and not has_ended(observed):
        return suspend(observed, now)
    if is_open(observed.job.status):
        return follow(observed, policies, settings, now)
    return begin(observed, policies, settings, now)
