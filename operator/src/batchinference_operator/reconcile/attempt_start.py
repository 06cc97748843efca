"""Starts the next attempt of a job, or reports why it waits."""

from dataclasses import replace
from datetime import datetime, timedelta

from batchinference.spec.causes import Cause
from batchinference.spec.durations import seconds_of
from batchinference.spec.status import PROCESSING_PHASES, Phase
from batchinference_operator.reconcile.admission_queue import ROUND_FROM_POSITION, AdmissionDecision
from batchinference_operator.reconcile.attempt_end import fail_if_expired
from batchinference_operator.reconcile.attempt_rendering import create_actions, planning_status
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.deadlines import job_deadlines
from batchinference_operator.reconcile.job_view import JobView, MutableSpec
from batchinference_operator.reconcile.kueue import rejection_hint
from batchinference_operator.reconcile.requeue import POLL_SECONDS, deletion_problem
from batchinference_operator.reconcile.state import Actions, Observed
from batchinference_operator.reconcile.suspend import add_suspended_time, end_ray_jobs
from batchinference_operator.status.attempts import (
    add_attempt,
    attempt_number,
    is_running,
    last_attempt,
    remove_attempt,
)
from batchinference_operator.status.conditions import Summary, Waiting, find_condition
from batchinference_operator.status.job_status import Status, StatusUpdate, with_observed_generation
from batchinference_operator.status.ray_job import RayJobView
from batchinference_operator.status.timestamps import seconds_since, to_rfc3339

UNREACHABLE_SECONDS = 60.0
"""Seconds of unavailability after which the status reports it. Most outages are shorter."""


def status_after_create_error(
    job: JobView,
    error: str,
    unreachable_seconds: float | None,
    now: datetime,
    local_queues: str = "",
    default_queue: str | None = None,
) -> Status | None:
    """Return the status that reports why the objects of an attempt could not be created.

    `unreachable_seconds` is for how long the API server has been unreachable; None if it rejected
    an object. Below UNREACHABLE_SECONDS, the result is None. `local_queues` is a sentence with the
    LocalQueues of the namespace, and `default_queue` the queue of the platform's defaults.
    """
    if unreachable_seconds is None:
        hint = rejection_hint(job, error, local_queues, default_queue)
        summary = Summary(Cause.REFUSED.value, f"{error}{hint}")
    elif unreachable_seconds >= UNREACHABLE_SECONDS:
        message = f"the API server could not create the job's objects: {error}"
        summary = Summary(Waiting.API_SERVER_UNAVAILABLE, message)
    else:
        return None
    return _pending_status(job.with_status(add_suspended_time(job, now)), summary, now)


def has_create_error(job: JobView) -> bool:
    """Return whether the status reports that the objects of the attempt cannot be created."""
    reason = find_condition(job.status, "Ready").get("reason")
    return reason in (Cause.REFUSED, Waiting.API_SERVER_UNAVAILABLE)


CREATE_RETRY_SECONDS = 60.0
"""Seconds until a job requests admission again after its RayJob could not be created."""
SHORT_QUEUE_SECONDS = 30.0
LONG_QUEUE_SECONDS = 300.0
"""Seconds between updates of the position in the status, for jobs with fewer than
ROUND_FROM_POSITION jobs ahead, and for all other jobs. These intervals do not delay the start,
because the admission queue wakes the job."""


def requeue_for_admission(job: JobView, now: datetime) -> JobView:
    """Return the job without its last attempt, whose RayJob could not be created. The job requests
    admission again after CREATE_RETRY_SECONDS. Meanwhile, other jobs can start."""
    at = to_rfc3339(now + timedelta(seconds=CREATE_RETRY_SECONDS))
    return job.with_status({**remove_attempt(job.status), "nextAttemptTime": at})


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
    return Actions(status=_pending_status(job, summary, now), requeue_after=POLL_SECONDS)


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
    status = _pending_status(job, Summary(Waiting.ADMISSION_PENDING, admission.message), now)
    refresh = SHORT_QUEUE_SECONDS if admission.ahead < ROUND_FROM_POSITION else LONG_QUEUE_SECONDS
    deadlines = [deadline.remaining for deadline in job_deadlines(job, spec, now)]
    return Actions(status=status, requeue_after=min([refresh, *deadlines]))


def _pending_status(job: JobView, summary: Summary, now: datetime) -> Status:
    return job.build_status(StatusUpdate(Phase.PENDING, summary), now)


POD_TERMINATION_SECONDS = 60.0
"""Maximum seconds for which the next attempt waits for the end of pods of the previous one."""


def start_attempt(observed: Observed, spec: MutableSpec, config: Config, now: datetime) -> Actions:
    """Return the actions that start the next attempt, wait for its start, or fail the job."""
    job = observed.job.with_status(add_suspended_time(observed.job, now))
    holder = observed.ray_jobs.get(job.next_names.ray_job)
    return (
        fail_if_expired(job, spec, now)
        or _delete_previous_attempts(observed, job, now)
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


def _delete_previous_attempts(observed: Observed, job: JobView, now: datetime) -> Actions | None:
    """Return the actions that delete the clusters of ended attempts; None if none is left.

    The driver of a suspended attempt may commit before the deletion. Pods are awaited for at most
    POD_TERMINATION_SECONDS, because a healthy node ends pods in this time, and a lost node does not
    report the end of its pods.
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
