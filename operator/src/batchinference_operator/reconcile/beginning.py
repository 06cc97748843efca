"""Starts the first attempt of a job and each retry."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from batchinference.rendering import Names, Owner, config_map, effective, ray_job
from batchinference.spec import SpecError, parse
from batchinference.spec.causes import Cause
from batchinference.spec.phases import AT_WORK, Phase
from batchinference.spec.problems import Problem
from batchinference_operator.reconcile.cleanup import half_removed, own
from batchinference_operator.reconcile.clock import age, stamp
from batchinference_operator.reconcile.deadlines import of_job
from batchinference_operator.reconcile.ending import POLL_SECONDS, job_failed, job_out_of_time
from batchinference_operator.reconcile.model import Actions, JobView, Observed
from batchinference_operator.reconcile.policies import Policies
from batchinference_operator.reconcile.settings import Settings
from batchinference_operator.reconcile.suspension import resumed
from batchinference_operator.reconcile.turns import MANY, Turn
from batchinference_operator.status.attempts import current, is_open, number_of, opened, withdrawn
from batchinference_operator.status.conditions import Verdict, condition_of
from batchinference_operator.status.observations import Object, RayJobView
from batchinference_operator.status.status import Finding, Status, build_status, read_again

WAITING_FOR_TURN = "WaitingForTurn"
API_SERVER_AWAY = "ApiServerAway"
NOT_MADE = (Cause.REFUSED.value, API_SERVER_AWAY)
"""Reasons of the condition Ready while the objects of an attempt cannot be created."""
AWAY_SECONDS = 60.0
"""How long the API server may be down before the status reports it. Most outages are shorter."""
REFUSED_SECONDS = 60.0
"""How long an admitted job whose RayJob could not be created waits before it is queued again."""
MAX_SPEC_BYTES = 128 << 10
"""The maximum size of a spec. The operator keeps the specs of all jobs in memory."""
LINGER_SECONDS = 60.0
"""How long the next attempt waits for pods of the previous one."""
SOON_SECONDS = 30.0
LATE_SECONDS = 300.0
"""How often the status of a waiting job gets its new position: with fewer than MANY jobs ahead, and
otherwise. This does not delay its start, because the admission queue wakes the job."""


def names_of(job: JobView, attempt: int) -> Names:
    return Names(job.name, job.uid, attempt)


def begin(observed: Observed, policies: Policies, settings: Settings, now: datetime) -> Actions:
    """Return the actions that create the objects of the next attempt.

    It waits until nothing of the previous attempt is left.
    """
    job = replace(observed.job, status=resumed(observed.job, now))
    names = names_of(job, number_of(job.status) + 1)
    return (
        job_out_of_time(job, policies, now)
        or _leftovers(observed, now)
        or _rest(job, policies, now)
        or _name_held(job, observed.ray_jobs.get(names.ray_job), now)
        or _in_turn(job, names, policies, settings, observed.turn, now)
    )


def corrected(job: JobView, now: datetime) -> Actions | None:
    """Return the actions that move a job from InvalidSpec back to Pending.

    None unless the spec has changed since the failure and no attempt was created.
    """
    failed = condition_of(job.status, "Failed") or {}
    invalid = failed.get("status") == "True" and failed.get("reason") == Cause.INVALID_SPEC.value
    changed = job.status.get("observedGeneration") != job.generation
    if not (invalid and changed) or number_of(job.status) > 0:
        return None
    finding = Finding(Phase.PENDING, Verdict("Pending", "the spec was changed; planning it again"))
    return Actions(status=build_status({}, job.generation, finding, stamp(now)), again_after=0)


def _in_turn(
    job: JobView,
    names: Names,
    policies: Policies,
    settings: Settings,
    turn: Turn | None,
    now: datetime,
) -> Actions:
    """Start the attempt, or wait if the admission queue does not admit the job yet."""
    if turn is None:
        return _make(job, names, settings, now)
    if not turn.begins:
        return wait_for_turn(job, names, policies, settings, turn, now)
    # the status is written first, because running jobs are counted by their status
    making = _make(job, names, settings, now)
    return replace(making, create=(), takes_turn=bool(making.create), again_after=0)


def _rest(job: JobView, policies: Policies, now: datetime) -> Actions | None:
    """Return the actions during the backoff before the next attempt; None once it is over."""
    if (wait := _wait(job, now)) <= 0:
        return None
    again = min([wait, *(deadline.left for deadline in of_job(job, policies, now))])
    return Actions(status=read_again(job.status, job.generation), again_after=again)


def unrecorded(observed: Observed) -> RayJobView | None:
    """Return the RayJob of the next attempt if it exists but is not in the status yet."""
    job = observed.job
    seen = observed.ray_jobs.get(names_of(job, number_of(job.status) + 1).ray_job)
    made = seen is not None and seen.owner_uid == job.uid and not seen.deleting
    return seen if made and not is_open(job.status) else None


def recorded(job: JobView, now: datetime) -> JobView:
    """Return the job with the attempt whose RayJob exists already.

    The RayJob is not created again, because a quota may reject it by now.
    """
    job = replace(job, status=resumed(job, now))
    names = names_of(job, number_of(job.status) + 1)
    if job.status.get("phase") in (Phase.STARTING, *AT_WORK):  # status of an older operator
        return replace(job, status=opened(job.status, names))
    return replace(job, status=_planning(job, names, now))


def _name_held(job: JobView, holder: RayJobView | None, now: datetime) -> Actions | None:
    """Return the actions while the name of the next RayJob is taken; None if it is free."""
    if holder is None:
        return None
    if holder.owner_uid != job.uid:
        return wait_for_name(job, holder, now)
    return Actions(again_after=POLL_SECONDS)  # created, and deleted before the status named it


def _wait(job: JobView, now: datetime) -> float:
    """Return the seconds until the next attempt may start. A job that is resumed starts now."""
    rested = job.status.get("phase") in (Phase.SUSPENDING, Phase.SUSPENDED)
    if rested or "nextAttemptTime" not in job.status:
        return 0.0
    return -age(job.status["nextAttemptTime"], now)


def _leftovers(observed: Observed, now: datetime) -> Actions | None:
    """Return the actions that clean up the RayJobs of ended attempts; None if nothing is left.

    It also waits for their pods, but at most LINGER_SECONDS. A healthy node needs no longer to end
    them, and a lost node no longer reports the state of its pods.
    """
    last = number_of(observed.job.status)
    ended = {names_of(observed.job, number).ray_job for number in range(1, last + 1)}
    mine = [seen for seen in own(observed) if seen.name in ended]
    live = tuple(seen for seen in mine if not seen.ended)
    going = any(seen.deleting and not seen.ended and seen.name in ended
                for seen in observed.ray_jobs.values())  # fmt: skip
    kept = tuple(seen for seen in mine if seen.ended and seen.kept)
    if not (live or going or kept or _lingers(observed, now)):
        return None
    remove = (*live, *half_removed(observed))
    return Actions(remove=remove, release=kept, again_after=POLL_SECONDS)


def _lingers(observed: Observed, now: datetime) -> bool:
    """Return whether pods of the previous attempt may still exist."""
    ended_at = (current(observed.job.status) or {}).get("completionTime")
    if ended_at is None or age(ended_at, now) >= LINGER_SECONDS:
        return False
    return any(pod.ended is None for pod in observed.pods)


def _make(job: JobView, names: Names, settings: Settings, now: datetime) -> Actions:
    actions = made(job, names, settings, now)
    return replace(actions, status=_planning(job, names, now)) if actions.create else actions


def _planning(job: JobView, names: Names, now: datetime) -> Status:
    """Return the status with the next attempt."""
    verdict = Verdict("Planning", f"RayJob {names.ray_job} is created")
    finding = Finding(Phase.PLANNING, verdict)
    return build_status(opened(job.status, names), job.generation, finding, stamp(now))


def made(job: JobView, names: Names, settings: Settings, now: datetime) -> Actions:
    """Return the actions that create the objects, or that fail the job if its spec is invalid."""
    if job.oversized:
        return job_failed(job, Cause.INVALID_SPEC, _too_large(job), now)
    try:
        return Actions(create=render(job, names, settings), again_after=POLL_SECONDS)
    except SpecError as error:
        return job_failed(job, Cause.INVALID_SPEC, "; ".join(str(error).splitlines()), now)


def _too_large(job: JobView) -> str:
    most, found = MAX_SPEC_BYTES >> 10, -(-job.oversized >> 10)
    return f"spec: it is too large ({found} KiB, at most {most} KiB). Put long values into files."


def render(job: JobView, names: Names, settings: Settings) -> tuple[Object, ...]:
    """Return the objects of an attempt. The RayJob is last, because it mounts the ConfigMap.

    Raises SpecError if the spec is invalid or the job is in the operator's namespace.
    """
    if job.namespace == settings.own_namespace:
        message = (
            f"'{job.namespace}' is the operator's namespace, whose Secrets its jobs could read: "
            "create the BatchInference in another namespace"
        )
        raise SpecError([Problem("metadata.namespace", message)])
    complete = effective(parse(job.document), settings.defaults)
    owner = Owner(job.name, job.uid)
    return config_map(complete, names, owner), ray_job(complete, names, owner)


def give_back(job: JobView, now: datetime) -> JobView:
    """Return the job without the attempt for which its RayJob could not be created.

    It asks for admission again after REFUSED_SECONDS, so that other jobs can be admitted meanwhile.
    """
    at = stamp(now + timedelta(seconds=REFUSED_SECONDS))
    return replace(job, status={**withdrawn(job.status), "nextAttemptTime": at})


def wait_for_name(job: JobView, seen: RayJobView, now: datetime) -> Actions:
    """Return the actions while another RayJob has the name of the job's RayJob."""
    if seen.owner_uid is not None:
        message = f"waiting until RayJob {seen.name} of a deleted BatchInference is gone"
    else:
        message = f"a RayJob named {seen.name} exists and is not this job's: delete or rename it"
    finding = Finding(Phase.PENDING, Verdict("NameTaken", message))
    status = build_status(job.status, job.generation, finding, stamp(now))
    return Actions(status=status, again_after=POLL_SECONDS)


def wait_for_turn(
    job: JobView, names: Names, policies: Policies, settings: Settings, turn: Turn, now: datetime
) -> Actions:
    """Return the actions of a job that waits in the admission queue.

    A job with an invalid spec fails before it waits.
    """
    waited = (condition_of(job.status, "Ready") or {}).get("reason") == WAITING_FOR_TURN
    if not waited and not (making := made(job, names, settings, now)).create:
        return making
    finding = Finding(Phase.PENDING, Verdict(WAITING_FOR_TURN, turn.words))
    status = build_status(job.status, job.generation, finding, stamp(now))
    again = SOON_SECONDS if turn.ahead < MANY else LATE_SECONDS
    lefts = [deadline.left for deadline in of_job(job, policies, now)]
    return Actions(status=status, again_after=min([again, *lefts]))


def refused(job: JobView, words: str, now: datetime) -> Status:
    """Return the status of a job whose objects the API server rejects with the message `words`."""
    return _not_made(job, Verdict(Cause.REFUSED.value, f"{words}{_way_out(job, words)}"), now)


def _way_out(job: JobView, words: str) -> str:
    """Return what the user can do about a rejection by Kueue; empty for other rejections.

    Kueue puts RayJobs without a queue into the LocalQueue `default` of their namespace. It then
    requires an annotation that only jobs with a queue have.
    """
    queued = (job.spec.get("cluster") or {}).get("queue")
    if queued or "kueue" not in words or "autoscaling" not in words:
        return ""
    return (
        ". Create the job again with spec.cluster.queue: default, the LocalQueue of its namespace"
    )


def away(job: JobView, words: str, now: datetime) -> Status:
    """Return the status of a job whose objects the API server has failed to create for a while."""
    told = f"the API server has not made the job's objects so far; it says: {words}"
    return _not_made(job, Verdict(API_SERVER_AWAY, told), now)


def _not_made(job: JobView, verdict: Verdict, now: datetime) -> Status:
    finding = Finding(Phase.PENDING, verdict)
    return build_status(resumed(job, now), job.generation, finding, stamp(now))
