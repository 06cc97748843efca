"""Starts the first attempt of a job and each retry."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from batchinference.rendering import Names, Owner, config_map, effective, ray_job
from batchinference.spec import SpecError, parse
from batchinference.spec.causes import Cause
from batchinference.spec.phases import AT_WORK, Phase
from batchinference.spec.problems import Problem
from batchinference_operator.reconcile.admission_queue import ROUNDED_FROM, AdmissionDecision
from batchinference_operator.reconcile.attempt_end import POLL_SECONDS, fail_if_expired, fail_job
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.deadlines import job_deadlines
from batchinference_operator.reconcile.policies import Policies
from batchinference_operator.reconcile.state import Actions, JobView, Observed
from batchinference_operator.reconcile.suspend import add_suspended_time
from batchinference_operator.reconcile.ttl_after_finished import owned_live, stuck_in_deletion
from batchinference_operator.status.attempts import (
    add_attempt,
    attempt_number,
    is_running,
    last_attempt,
    remove_attempt,
)
from batchinference_operator.status.conditions import Summary, find_condition
from batchinference_operator.status.job_status import (
    Status,
    StatusUpdate,
    build_status,
    with_observed_generation,
)
from batchinference_operator.status.ray_job import Object, RayJobView
from batchinference_operator.status.timestamps import seconds_since, to_rfc3339

ADMISSION_PENDING = "WaitingForTurn"
API_SERVER_UNREACHABLE = "ApiServerAway"
CREATE_ERRORS = (Cause.REFUSED.value, API_SERVER_UNREACHABLE)
"""Reasons of the condition Ready while the objects of an attempt cannot be created."""
UNREACHABLE_SECONDS = 60.0
"""How long the API server may be down before the status reports it. Most outages are shorter."""
CREATE_RETRY_SECONDS = 60.0
"""How long an admitted job whose RayJob could not be created waits before it is queued again."""
MAX_SPEC_BYTES = 128 << 10
"""The maximum size of a spec. The operator keeps the specs of all jobs in memory."""
POD_TERMINATION_SECONDS = 60.0
"""How long the next attempt waits for pods of the previous one."""
SHORT_QUEUE_SECONDS = 30.0
LONG_QUEUE_SECONDS = 300.0
"""How often the status of a waiting job gets its new position: with fewer than MANY jobs ahead, and
otherwise. This does not delay its start, because the admission queue wakes the job."""


def names_of(job: JobView, attempt: int) -> Names:
    return Names(job.name, job.uid, attempt)


def start_attempt(observed: Observed, policies: Policies, config: Config, now: datetime) -> Actions:
    """Return the actions that create the objects of the next attempt.

    It waits until nothing of the previous attempt is left.
    """
    job = replace(observed.job, status=add_suspended_time(observed.job, now))
    names = names_of(job, attempt_number(job.status) + 1)
    return (
        fail_if_expired(job, policies, now)
        or _delete_previous_attempts(observed, now)
        or _wait_for_backoff(job, policies, now)
        or _wait_if_name_taken(job, observed.ray_jobs.get(names.ray_job), now)
        or _start_if_admitted(job, names, policies, config, observed.admission, now)
    )


def retry_corrected_spec(job: JobView, now: datetime) -> Actions | None:
    """Return the actions that move a job from InvalidSpec back to Pending.

    None unless the spec has changed since the failure and no attempt was created.
    """
    failed = find_condition(job.status, "Failed") or {}
    invalid = failed.get("status") == "True" and failed.get("reason") == Cause.INVALID_SPEC.value
    changed = job.status.get("observedGeneration") != job.generation
    if not (invalid and changed) or attempt_number(job.status) > 0:
        return None
    update = StatusUpdate(
        Phase.PENDING, Summary("Pending", "the spec was changed; planning it again")
    )
    return Actions(
        status=build_status({}, job.generation, update, to_rfc3339(now)), requeue_after=0
    )


def _start_if_admitted(
    job: JobView,
    names: Names,
    policies: Policies,
    config: Config,
    admission: AdmissionDecision | None,
    now: datetime,
) -> Actions:
    """Start the attempt, or wait if the admission queue does not admit the job yet."""
    if admission is None:
        return _plan_attempt(job, names, config, now)
    if not admission.admitted:
        return wait_for_admission(job, names, policies, config, admission, now)
    # the status is written first, because running jobs are counted by their status
    making = _plan_attempt(job, names, config, now)
    return replace(making, create=(), admits=bool(making.create), requeue_after=0)


def _wait_for_backoff(job: JobView, policies: Policies, now: datetime) -> Actions | None:
    """Return the actions during the backoff before the next attempt; None once it is over."""
    if (wait := _backoff_left(job, now)) <= 0:
        return None
    again = min([wait, *(deadline.left for deadline in job_deadlines(job, policies, now))])
    return Actions(status=with_observed_generation(job.status, job.generation), requeue_after=again)


def find_unadopted(observed: Observed) -> RayJobView | None:
    """Return the RayJob of the next attempt if it exists but is not in the status yet."""
    job = observed.job
    ray_job = observed.ray_jobs.get(names_of(job, attempt_number(job.status) + 1).ray_job)
    create_actions = ray_job is not None and ray_job.owner_uid == job.uid and not ray_job.deleting
    return ray_job if create_actions and not is_running(job.status) else None


def adopt(job: JobView, now: datetime) -> JobView:
    """Return the job with the attempt whose RayJob exists already.

    The RayJob is not created again, because a quota may reject it by now.
    """
    job = replace(job, status=add_suspended_time(job, now))
    names = names_of(job, attempt_number(job.status) + 1)
    if job.status.get("phase") in (Phase.STARTING, *AT_WORK):  # status of an older operator
        return replace(job, status=add_attempt(job.status, names))
    return replace(job, status=_planning_status(job, names, now))


def _wait_if_name_taken(job: JobView, holder: RayJobView | None, now: datetime) -> Actions | None:
    """Return the actions while the name of the next RayJob is taken; None if it is free."""
    if holder is None:
        return None
    if holder.owner_uid != job.uid:
        return wait_for_name(job, holder, now)
    return Actions(requeue_after=POLL_SECONDS)  # created, and deleted before the status named it


def _backoff_left(job: JobView, now: datetime) -> float:
    """Return the seconds until the next attempt may start. A job that is resumed starts now."""
    rested = job.status.get("phase") in (Phase.SUSPENDING, Phase.SUSPENDED)
    if rested or "nextAttemptTime" not in job.status:
        return 0.0
    return -seconds_since(job.status["nextAttemptTime"], now)


def _delete_previous_attempts(observed: Observed, now: datetime) -> Actions | None:
    """Return the actions that clean up the RayJobs of ended attempts; None if nothing is left.

    It also waits for their pods, but at most LINGER_SECONDS. A healthy node needs no longer to end
    them, and a lost node no longer reports the state of its pods.
    """
    last = attempt_number(observed.job.status)
    ended = {names_of(observed.job, number).ray_job for number in range(1, last + 1)}
    owned = [ray_job for ray_job in owned_live(observed) if ray_job.name in ended]
    live = tuple(ray_job for ray_job in owned if not ray_job.ended)
    going = any(ray_job.deleting and not ray_job.ended and ray_job.name in ended
                for ray_job in observed.ray_jobs.values())  # fmt: skip
    kept = tuple(ray_job for ray_job in owned if ray_job.ended and ray_job.cluster_retained)
    if not (live or going or kept or _pods_terminating(observed, now)):
        return None
    remove = (*live, *stuck_in_deletion(observed))
    return Actions(delete_ray_jobs=remove, release_clusters=kept, requeue_after=POLL_SECONDS)


def _pods_terminating(observed: Observed, now: datetime) -> bool:
    """Return whether pods of the previous attempt may still exist."""
    ended_at = (last_attempt(observed.job.status) or {}).get("completionTime")
    if ended_at is None or seconds_since(ended_at, now) >= POD_TERMINATION_SECONDS:
        return False
    return any(pod.ended is None for pod in observed.pods)


def _plan_attempt(job: JobView, names: Names, config: Config, now: datetime) -> Actions:
    actions = create_actions(job, names, config, now)
    return replace(actions, status=_planning_status(job, names, now)) if actions.create else actions


def _planning_status(job: JobView, names: Names, now: datetime) -> Status:
    """Return the status with the next attempt."""
    summary = Summary("Planning", f"RayJob {names.ray_job} is created")
    update = StatusUpdate(Phase.PLANNING, summary)
    return build_status(add_attempt(job.status, names), job.generation, update, to_rfc3339(now))


def create_actions(job: JobView, names: Names, config: Config, now: datetime) -> Actions:
    """Return the actions that create the objects, or that fail the job if its spec is invalid."""
    if job.oversized:
        return fail_job(job, Cause.INVALID_SPEC, _too_large(job), now)
    try:
        return Actions(create=render_objects(job, names, config), requeue_after=POLL_SECONDS)
    except SpecError as error:
        return fail_job(job, Cause.INVALID_SPEC, "; ".join(str(error).splitlines()), now)


def _too_large(job: JobView) -> str:
    most, found = MAX_SPEC_BYTES >> 10, -(-job.oversized >> 10)
    return f"spec: it is too large ({found} KiB, at most {most} KiB). Put long values into files."


def render_objects(job: JobView, names: Names, config: Config) -> tuple[Object, ...]:
    """Return the objects of an attempt. The RayJob is last, because it mounts the ConfigMap.

    Raises SpecError if the spec is invalid or the job is in the operator's namespace.
    """
    if job.namespace == config.own_namespace:
        message = (
            f"'{job.namespace}' is the operator's namespace, whose Secrets its jobs could read: "
            "create the BatchInference in another namespace"
        )
        raise SpecError([Problem("metadata.namespace", message)])
    complete = effective(parse(job.document), config.defaults)
    owner = Owner(job.name, job.uid)
    return config_map(complete, names, owner), ray_job(complete, names, owner)


def requeue_for_admission(job: JobView, now: datetime) -> JobView:
    """Return the job without the attempt for which its RayJob could not be created.

    It asks for admission again after REFUSED_SECONDS, so that other jobs can be admitted meanwhile.
    """
    at = to_rfc3339(now + timedelta(seconds=CREATE_RETRY_SECONDS))
    return replace(job, status={**remove_attempt(job.status), "nextAttemptTime": at})


def wait_for_name(job: JobView, ray_job: RayJobView, now: datetime) -> Actions:
    """Return the actions while another RayJob has the name of the job's RayJob."""
    if ray_job.owner_uid is not None:
        message = f"waiting until RayJob {ray_job.name} of a deleted BatchInference is gone"
    else:
        message = f"a RayJob named {ray_job.name} exists and is not this job's: delete or rename it"
    update = StatusUpdate(Phase.PENDING, Summary("NameTaken", message))
    status = build_status(job.status, job.generation, update, to_rfc3339(now))
    return Actions(status=status, requeue_after=POLL_SECONDS)


def wait_for_admission(
    job: JobView,
    names: Names,
    policies: Policies,
    config: Config,
    admission: AdmissionDecision,
    now: datetime,
) -> Actions:
    """Return the actions of a job that waits in the admission queue.

    A job with an invalid spec fails before it waits.
    """
    waited = (find_condition(job.status, "Ready") or {}).get("reason") == ADMISSION_PENDING
    if not waited and not (making := create_actions(job, names, config, now)).create:
        return making
    update = StatusUpdate(Phase.PENDING, Summary(ADMISSION_PENDING, admission.message))
    status = build_status(job.status, job.generation, update, to_rfc3339(now))
    again = SHORT_QUEUE_SECONDS if admission.ahead < ROUNDED_FROM else LONG_QUEUE_SECONDS
    lefts = [deadline.left for deadline in job_deadlines(job, policies, now)]
    return Actions(status=status, requeue_after=min([again, *lefts]))


def create_refused(job: JobView, message: str, now: datetime) -> Status:
    """Return the status of a job whose objects the API server rejects with a message."""
    return _pending_status(
        job, Summary(Cause.REFUSED.value, f"{message}{_kueue_hint(job, message)}"), now
    )


def _kueue_hint(job: JobView, message: str) -> str:
    """Return what the user can do about a rejection by Kueue; empty for other rejections.

    Kueue puts RayJobs without a queue into the LocalQueue `default` of their namespace. It then
    requires an annotation that only jobs with a queue have.
    """
    queued = (job.spec.get("cluster") or {}).get("queue")
    if queued or "kueue" not in message or "autoscaling" not in message:
        return ""
    return (
        ". Create the job again with spec.cluster.queue: default, the LocalQueue of its namespace"
    )


def api_unreachable(job: JobView, message: str, now: datetime) -> Status:
    """Return the status of a job whose objects the API server has failed to create for a while."""
    told = f"the API server has not made the job's objects so far; it says: {message}"
    return _pending_status(job, Summary(API_SERVER_UNREACHABLE, told), now)


def _pending_status(job: JobView, summary: Summary, now: datetime) -> Status:
    update = StatusUpdate(Phase.PENDING, summary)
    return build_status(add_suspended_time(job, now), job.generation, update, to_rfc3339(now))
