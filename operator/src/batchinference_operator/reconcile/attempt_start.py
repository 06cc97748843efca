"""Starts the next attempt of a job, or reports why it waits."""

from dataclasses import replace
from datetime import datetime, timedelta

from batchinference.spec.durations import seconds_of
from batchinference_operator.reconcile.admission_queue import ROUND_FROM_POSITION, AdmissionDecision
from batchinference_operator.reconcile.attempt_objects import create_actions, planning_status
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.create_errors import CREATE_RETRY_SECONDS, has_create_error
from batchinference_operator.reconcile.deadlines import job_deadlines
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.kuberay_silence import deletion_problem
from batchinference_operator.reconcile.mutable_spec import MutableSpec
from batchinference_operator.reconcile.observed_and_actions import Actions, Observed
from batchinference_operator.reconcile.ray_job_deletion import delete_previous_attempts
from batchinference_operator.reconcile.requeue import POLL_SECONDS
from batchinference_operator.reconcile.retry_or_fail import fail_if_expired
from batchinference_operator.reconcile.suspend import add_suspended_time
from batchinference_operator.status.conditions import Summary, Waiting, find_condition
from batchinference_operator.status.job_status import with_observed_generation
from batchinference_operator.status.ray_job_view import RayJobView
from batchinference_operator.status.timestamps import seconds_since, to_rfc3339

SHORT_QUEUE_SECONDS = 30.0
LONG_QUEUE_SECONDS = 300.0
"""Seconds between updates of the position in the status, for jobs with fewer than
ROUND_FROM_POSITION jobs ahead, and for all other jobs. These intervals do not delay the start,
because the admission queue wakes the job."""


def wait_for_name(job: JobView, ray_job: RayJobView, now: datetime) -> Actions:
    """Return the actions while `ray_job` has the name of the RayJob that the job needs."""
    if ray_job.owner_uid == job.uid:
        return Actions(requeue_after=POLL_SECONDS)  # this RayJob is being deleted
    name, former = ray_job.name, ray_job.owner_uid is not None
    if ray_job.deleting or former:
        of_job = " of a deleted BatchInference" if former else ""
        message = f"waiting until RayJob {name}{of_job} is gone"
    else:
        command = f"kubectl delete rayjob {name} -n {job.namespace}"
        message = f"RayJob {name} exists and is not this job's. To start the job, run `{command}`"
    summary = deletion_problem([ray_job], now) or Summary(Waiting.NAME_TAKEN, message)
    return Actions(status=job.pending_status(summary, now), requeue_after=POLL_SECONDS)


def _wait_for_admission(
    job: JobView, spec: MutableSpec, config: Config, admission: AdmissionDecision, now: datetime
) -> Actions:
    """Return the actions of a job that waits in the admission queue. When the wait begins and when
    the spec changes, the spec is checked. If it is invalid, the job fails."""
    ready = find_condition(job.status, "Ready")
    same_spec = job.status.get("observedGeneration") == job.generation
    if not same_spec or ready.get("reason") != Waiting.ADMISSION_PENDING:
        planned = create_actions(job, job.next_names, config, now)
        if not planned.create:
            return planned
    status = job.pending_status(Summary(Waiting.ADMISSION_PENDING, admission.message), now)
    refresh = SHORT_QUEUE_SECONDS if admission.ahead < ROUND_FROM_POSITION else LONG_QUEUE_SECONDS
    deadlines = [deadline.remaining for deadline in job_deadlines(job, spec, now)]
    return Actions(status=status, requeue_after=min([refresh, *deadlines]))


def start_attempt(observed: Observed, spec: MutableSpec, config: Config, now: datetime) -> Actions:
    """Return the actions that start the next attempt, wait for its start, or fail the job."""
    job = observed.job.with_status(add_suspended_time(observed.job, now))
    holder = observed.ray_jobs.get(job.next_names.ray_job)
    return (
        fail_if_expired(job, spec, now)
        or delete_previous_attempts(observed, job, now)
        or _wait_for_backoff(job, spec, now)
        or (None if holder is None else wait_for_name(job, holder, now))
        or _create_if_admitted(replace(observed, job=job), spec, config, now)
    )


def _create_if_admitted(
    observed: Observed, spec: MutableSpec, config: Config, now: datetime
) -> Actions:
    """Return the actions that start the attempt, wait for admission, or fail the job."""
    job, admission = observed.job, observed.admission
    if admission is not None and not admission.admitted:
        return _wait_for_admission(job, spec, config, admission, now)
    names = job.next_names
    actions = create_actions(job, names, config, now)
    if not actions.create:
        return actions
    status = planning_status(job, names, now)
    if admission is None:
        return replace(actions, status=status)
    # the status is written before objects are created, because running jobs are counted by status
    return Actions(status=status, admits=True, requeue_after=0)


def _wait_for_backoff(job: JobView, spec: MutableSpec, now: datetime) -> Actions | None:
    """Return the actions during the backoff before the next attempt; None once it is over. If the
    clock was ahead when the backoff began, the rest of it is shortened to the maximum backoff."""
    at = job.status.get("nextAttemptTime")
    if at is None or (left := -seconds_since(at, now)) <= 0:
        return None
    deadlines = [deadline.remaining for deadline in job_deadlines(job, spec, now)]
    # while the status reports a create error, it also keeps the generation that the error is about
    keeps = has_create_error(job)
    status = None if keeps else with_observed_generation(job.status, job.generation)
    longest = max(CREATE_RETRY_SECONDS, seconds_of(spec.retry.backoff.max))
    if left > longest:
        left, at = longest, to_rfc3339(now + timedelta(seconds=longest))
        status = {**(status or job.status), "nextAttemptTime": at}
    return Actions(status=status, requeue_after=min([left, *deadlines]))
