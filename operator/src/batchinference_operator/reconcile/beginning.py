"""The first attempt, and each further one."""

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
"""Why the objects of an attempt are not there."""
AWAY_SECONDS = 60.0
"""How long the API server may be away before that is told: mostly it is back sooner."""
REFUSED_SECONDS = 60.0
"""How long a job rests whose RayJob could not be made in its turn."""
MAX_SPEC_BYTES = 128 << 10
"""How large a spec may be. The operator keeps the specs of all jobs in memory."""
LINGER_SECONDS = 60.0
"""How long the next attempt waits for pods of the one before."""
SOON_SECONDS = 30.0
LATE_SECONDS = 300.0
"""How often a waiting job's place is told anew. It begins by no clock: it is woken."""


def names_of(job: JobView, attempt: int) -> Names:
    return Names(job.name, job.uid, attempt)


def begin(observed: Observed, policies: Policies, settings: Settings, now: datetime) -> Actions:
    """Make the objects of the next attempt, once nothing is left of the one before."""
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
    """The return of a job from InvalidSpec, where its spec has changed since and nothing was
    created; None for any other finished job."""
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
    """Begin, if the job need not wait for its turn."""
    if turn is None:
        return _make(job, names, settings, now)
    if not turn.begins:
        return wait_for_turn(job, names, policies, settings, turn, now)
    # the status has it first: it is by the status that running jobs are counted
    making = _make(job, names, settings, now)
    return replace(making, create=(), takes_turn=bool(making.create), again_after=0)


def _rest(job: JobView, policies: Policies, now: datetime) -> Actions | None:
    """The pause before the next attempt."""
    if (wait := _wait(job, now)) <= 0:
        return None
    again = min([wait, *(deadline.left for deadline in of_job(job, policies, now))])
    return Actions(status=read_again(job.status, job.generation), again_after=again)


def unrecorded(observed: Observed) -> RayJobView | None:
    """The RayJob of the next attempt, where it was made, but the status says nothing of it yet."""
    job = observed.job
    seen = observed.ray_jobs.get(names_of(job, number_of(job.status) + 1).ray_job)
    made = seen is not None and seen.owner_uid == job.uid and not seen.deleting
    return seen if made and not is_open(job.status) else None


def recorded(job: JobView, now: datetime) -> JobView:
    """The job with the attempt whose RayJob was made. That is not made again, which by now a quota
    may refuse."""
    job = replace(job, status=resumed(job, now))
    names = names_of(job, number_of(job.status) + 1)
    if job.status.get("phase") in (Phase.STARTING, *AT_WORK):  # by an operator without attempts
        return replace(job, status=opened(job.status, names))
    return replace(job, status=_planning(job, names, now))


def _name_held(job: JobView, holder: RayJobView | None, now: datetime) -> Actions | None:
    """The wait for the name of the next RayJob."""
    if holder is None:
        return None
    if holder.owner_uid != job.uid:
        return wait_for_name(job, holder, now)
    return Actions(again_after=POLL_SECONDS)  # made, and taken away before the status said so


def _wait(job: JobView, now: datetime) -> float:
    """Seconds until the next attempt may begin. Who lets a suspended job go on wants it now."""
    rested = job.status.get("phase") in (Phase.SUSPENDING, Phase.SUSPENDED)
    if rested or "nextAttemptTime" not in job.status:
        return 0.0
    return -age(job.status["nextAttemptTime"], now)


def _leftovers(observed: Observed, now: datetime) -> Actions | None:
    """What to do about RayJobs of attempts that have ended; None when they are done with. Pods are
    waited for, too, but no longer than a node takes that is there: one that is lost tells nothing
    of them any more."""
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
    """Whether pods of the attempt before may still be there."""
    ended_at = (current(observed.job.status) or {}).get("completionTime")
    if ended_at is None or age(ended_at, now) >= LINGER_SECONDS:
        return False
    return any(pod.ended is None for pod in observed.pods)


def _make(job: JobView, names: Names, settings: Settings, now: datetime) -> Actions:
    actions = made(job, names, settings, now)
    return replace(actions, status=_planning(job, names, now)) if actions.create else actions


def _planning(job: JobView, names: Names, now: datetime) -> Status:
    """The status with the next attempt."""
    verdict = Verdict("Planning", f"RayJob {names.ray_job} is created")
    finding = Finding(Phase.PLANNING, verdict)
    return build_status(opened(job.status, names), job.generation, finding, stamp(now))


def made(job: JobView, names: Names, settings: Settings, now: datetime) -> Actions:
    """Make the objects, or fail the job in the words of the problem."""
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
    """What an attempt is started with, the RayJob last: what it mounts is there before it.

    Raises SpecError.
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
    """The job without its turn, in which its RayJob could not be made: it asks for another after
    a while, in which others have theirs."""
    at = stamp(now + timedelta(seconds=REFUSED_SECONDS))
    return replace(job, status={**withdrawn(job.status), "nextAttemptTime": at})


def wait_for_name(job: JobView, seen: RayJobView, now: datetime) -> Actions:
    """The name of the RayJob is another's."""
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
    """Others are ahead. A job that could not be made at all learns it before it waits."""
    waited = (condition_of(job.status, "Ready") or {}).get("reason") == WAITING_FOR_TURN
    if not waited and not (making := made(job, names, settings, now)).create:
        return making
    finding = Finding(Phase.PENDING, Verdict(WAITING_FOR_TURN, turn.words))
    status = build_status(job.status, job.generation, finding, stamp(now))
    again = SOON_SECONDS if turn.ahead < MANY else LATE_SECONDS
    lefts = [deadline.left for deadline in of_job(job, policies, now)]
    return Actions(status=status, again_after=min([again, *lefts]))


def refused(job: JobView, words: str, now: datetime) -> Status:
    """The status of a job whose objects the API server does not take, in the server's words."""
    return _not_made(job, Verdict(Cause.REFUSED.value, f"{words}{_way_out(job, words)}"), now)


def _way_out(job: JobView, words: str) -> str:
    """What to do about a refusal by Kueue, which puts RayJobs without a queue into the LocalQueue
    `default` of their namespace and asks for an annotation that only jobs in a queue have."""
    queued = (job.spec.get("cluster") or {}).get("queue")
    if queued or "kueue" not in words or "autoscaling" not in words:
        return ""
    return (
        ". Create the job again with spec.cluster.queue: default, the LocalQueue of its namespace"
    )


def away(job: JobView, words: str, now: datetime) -> Status:
    """The status of a job whose objects the API server has failed to make for a while."""
    told = f"the API server has not made the job's objects so far; it says: {words}"
    return _not_made(job, Verdict(API_SERVER_AWAY, told), now)


def _not_made(job: JobView, verdict: Verdict, now: datetime) -> Status:
    finding = Finding(Phase.PENDING, verdict)
    return build_status(resumed(job, now), job.generation, finding, stamp(now))
