"""Decides what to do next with a job: computes the actions from the observed state.

All state is in the API server, so the operator can stop at any point and continue after a restart.
The status records the end of an attempt before its RayJob is deleted.
"""

from dataclasses import replace
from datetime import datetime

from batchinference_operator.reconcile.adoption import adopt, find_unadopted
from batchinference_operator.reconcile.attempt_start import start_attempt
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.cost import add_cost
from batchinference_operator.reconcile.device_usage import add_usage
from batchinference_operator.reconcile.driver_silence import driver_ended
from batchinference_operator.reconcile.mutable_spec import MutableSpec
from batchinference_operator.reconcile.observed_and_actions import Actions, Observed
from batchinference_operator.reconcile.ray_job_deletion import end_ray_jobs_of_deleted_job
from batchinference_operator.reconcile.running_attempt import sync_attempt
from batchinference_operator.reconcile.spec_check import retry_corrected_spec
from batchinference_operator.reconcile.suspend import suspend
from batchinference_operator.reconcile.ttl import enforce_ttl
from batchinference_operator.reconcile.unsent_notifications import (
    record_notifications,
    unsent_notifications,
)
from batchinference_operator.status.attempts import attempt_number, is_running


def reconcile(observed: Observed, config: Config, now: datetime) -> Actions:
    """Return the actions for a job."""
    job = observed.job
    spec = MutableSpec.of(job.spec, config.defaults)
    if not job.managed:
        return Actions()
    if job.deleting:
        return end_ray_jobs_of_deleted_job(observed, now)
    if job.finished:
        if (corrected := retry_corrected_spec(job, now)) is not None:
            return corrected
        if unsent_notifications(job):  # they must be sent before the job is deleted
            spec = replace(spec, ttl=spec.ttl.model_copy(update={"after_finished": None}))
        return record_notifications(enforce_ttl(observed, spec, now), observed, now)
    if is_running(job.status):
        observed = replace(observed, job=job.with_status(add_usage(observed, now)))
    actions = _decide(observed, spec, config, now)
    if actions.status is None:
        return actions
    return replace(actions, status=add_cost(actions.status, config.prices))


def _decide(observed: Observed, spec: MutableSpec, config: Config, now: datetime) -> Actions:
    unadopted = find_unadopted(observed)
    if unadopted is not None:
        # without the disruption and the crashes, which are those of the previous attempt
        observed = replace(observed, job=adopt(observed.job, now), disruption=None, crashes=())
        if unadopted.driver_started or unadopted.ended:
            # write the status first: without the attempt in it, no driver and no pods are observed
            return Actions(status=observed.job.status, requeue_after=0)
    if spec.suspend and not driver_ended(observed):
        return suspend(observed, spec.ttl, now)
    if is_running(observed.job.status):
        actions = sync_attempt(observed, spec, config, now)
        # RayJobs of earlier attempts are deleted, but a former leader may have created one again
        job, last = observed.job, attempt_number(observed.job.status) - 1
        live = (one for one in observed.live_ray_jobs if not one.ended)
        earlier = (one for one in live if job.has_attempt(one.name, last))
        return replace(actions, delete_ray_jobs=tuple(earlier))
    return start_attempt(observed, spec, config, now)
