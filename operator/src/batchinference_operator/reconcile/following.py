"""The attempt that goes on."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import datetime

from batchinference.rendering import RAY_API_VERSION, RAY_JOB, Backstop, Owner, token_secret
from batchinference.spec.causes import Cause
from batchinference.spec.phases import Phase
from batchinference.spec.report import JobState, Report
from batchinference_operator.reconcile.beginning import (
    NOT_MADE,
    REFUSED_SECONDS,
    give_back,
    made,
    names_of,
    wait_for_name,
)
from batchinference_operator.reconcile.clock import age, stamp
from batchinference_operator.reconcile.deadlines import (
    Deadline,
    backstop_of,
    of_attempt,
    of_job,
)
from batchinference_operator.reconcile.ending import (
    POLL_SECONDS,
    attempt_failed,
    job_out_of_time,
    succeeded,
)
from batchinference_operator.reconcile.looks import next_look
from batchinference_operator.reconcile.model import Actions, JobView, Observed
from batchinference_operator.reconcile.policies import Policies
from batchinference_operator.reconcile.queueing import with_queue
from batchinference_operator.reconcile.settings import Settings
from batchinference_operator.reconcile.usage import gpus_now
from batchinference_operator.status.attempts import (
    advanced,
    begun,
    current,
    is_open,
    number_of,
    restarted,
)
from batchinference_operator.status.causes import cause_of
from batchinference_operator.status.conditions import Verdict, condition_of
from batchinference_operator.status.crashes import crash_loop, describe
from batchinference_operator.status.observations import Object, RayJobView
from batchinference_operator.status.pods import Loss, PodView
from batchinference_operator.status.status import Finding, Status, build_status
from batchinference_operator.status.verdict import judge

SILENCE_SECONDS = 60.0
"""How long a driver may be silent at its beginning before that is told."""
REPORT_GRACE_SECONDS = 60.0
"""How long the report of a RayJob that has ended is asked for before it is done without."""
REPORT_MAX_AGE_SECONDS = 300.0
"""How old the last report may be: many slow drivers in one namespace are polled less often."""
LOST_PODS_SECONDS = 60.0
"""How long after the loss of its head, or of all its workers, an attempt ends."""


def ray_job_of(observed: Observed) -> RayJobView | None:
    """The RayJob of the attempt that goes on, whoever it belongs to."""
    job = observed.job
    return observed.ray_jobs.get(names_of(job, number_of(job.status)).ray_job)


def _going_on(observed: Observed) -> RayJobView | None:
    """The RayJob of the attempt that goes on, if it is this job's."""
    job, seen = observed.job, ray_job_of(observed)
    return seen if is_open(job.status) and seen and seen.owner_uid == job.uid else None


def wants_report(observed: Observed) -> bool:
    """Whether the driver is to be asked how it goes."""
    seen = _going_on(observed)
    return seen is not None and seen.driver_started and not observed.job.deleting


def has_ended(observed: Observed) -> bool:
    """Whether the driver has said its last word, which stands before anything else, or is known to
    have succeeded."""
    seen, report = _going_on(observed), observed.report
    if seen is not None and seen.succeeded:
        return True
    if report is None or not report.state.ended:
        return False
    # a failure may be that Kueue takes the pods away
    return report.state == JobState.SUCCEEDED or seen is None or not seen.held


def follow(observed: Observed, policies: Policies, settings: Settings, now: datetime) -> Actions:
    """Say how the attempt goes, or end it."""
    observed = _without_old_report(observed)
    job, seen = observed.job, ray_job_of(observed)
    attempt = current(job.status) or {}
    if seen is None or seen.owner_uid != job.uid:
        return _not_there(job, seen, policies, settings, now)
    if "startTime" not in attempt:
        observed = replace(observed, job=replace(job, status=begun(job.status, seen.created_at)))
    actions = _judged(observed, seen, policies, now)
    if "startTime" in attempt and not _lacks_something(observed):
        return actions
    if actions.status is not None and not is_open(actions.status):
        return actions  # its end waits for no Secret, which may be refused
    # the status names the beginning from the look on that gives the RayJob its token
    return replace(actions, create=(_token_of(job, seen, settings),))


def _without_old_report(observed: Observed) -> Observed:
    """A report of a driver that nobody could poll for long says nothing of how it goes now."""
    if observed.report_age < REPORT_MAX_AGE_SECONDS:
        return observed
    return replace(observed, report=None, driver_reached=False)


def _lacks_something(observed: Observed) -> bool:
    """Whether a pod misses a Secret, which may be the token: the one that was made may have
    belonged to a RayJob of the same name that somebody has deleted."""
    troubles = [pod.trouble for pod in observed.pods_of_attempt]
    return any(one is not None and one.cause == Cause.CONTAINER_CONFIG for one in troubles)


def _not_there(
    job: JobView, seen: RayJobView | None, policies: Policies, settings: Settings, now: datetime
) -> Actions:
    """The RayJob was deleted by somebody, was not made yet, or its name is another's."""
    names = names_of(job, number_of(job.status))
    if "startTime" in (current(job.status) or {}):
        message = f"RayJob {names.ray_job} was deleted before the job ended"
        return attempt_failed(job, policies, Cause.RAY_JOB_DELETED, message, now)
    if (over := job_out_of_time(job, policies, now)) is not None:
        return over
    limited = settings.concurrency.limited
    not_made = (condition_of(job.status, "Ready") or {}).get("reason") in NOT_MADE
    if seen is None and not (limited and not_made):
        return made(job, names, settings, now)
    job = give_back(job, now) if limited else job
    if seen is None:
        return Actions(status=job.status, again_after=REFUSED_SECONDS)
    return wait_for_name(job, seen, now)


def _token_of(job: JobView, seen: RayJobView, settings: Settings) -> Object:
    """The Secret with the token. It belongs to the RayJob, so it can only come after it."""
    owner = Owner(seen.name, seen.uid, RAY_JOB, RAY_API_VERSION)
    names = names_of(job, number_of(job.status))
    return token_secret(job.namespace, names, settings.token(job, seen.name), owner)


def created(
    job: JobView, status: Status, body: Object, settings: Settings, now: datetime
) -> Actions:
    """What follows at once when the RayJob of an attempt was created, and would otherwise wait
    until it is seen: its token, and what is said of it. `status` was decided with it."""
    seen = RayJobView.of(body)
    observed = Observed(replace(job, status=status), {seen.name: seen})
    policies = Policies.of(job.spec, settings.defaults.limits)
    return follow(observed, policies, settings, now)


def _judged(observed: Observed, seen: RayJobView, policies: Policies, now: datetime) -> Actions:
    observed = with_queue(observed, seen, now)
    job, report = observed.job, observed.report
    if seen.ended and _report_may_come(observed, seen, now):
        return _ask_again(job, seen, now)
    job = replace(job, status=_advanced(job, seen, report, now))
    output = str(job.spec.get("write", {}).get("path", ""))
    told = {**observed.words, **_of_silence(observed, seen, now)}
    before = job.status.get("phase", "")
    alone = _of_attempt_alone(job.status, report)
    phase, verdict = judge(seen, observed.pods_of_attempt, alone, output, before, told)
    phase, verdict = _explained(observed, seen, phase, verdict)
    finding = Finding(phase, verdict, seen, report)
    if verdict.complete:
        return succeeded(job, finding, now)
    if verdict.failed:
        cause, words = cause_of(seen, report, observed.losses)
        return attempt_failed(job, policies, cause, words, now, finding)
    if (hopeless := _hopeless(observed, seen, now)) is not None:
        return attempt_failed(job, policies, *hopeless, now, finding)
    status = build_status(job.status, job.generation, finding, stamp(now))
    pace, observed = next_look(observed, seen), replace(observed, job=replace(job, status=status))
    return _within_time(observed, policies, finding, pace, now)


def _report_may_come(observed: Observed, seen: RayJobView, now: datetime) -> bool:
    """Whether the driver's last report may still be read: until it was polled once, and for a
    while after its end."""
    if not _unheard(observed, seen):
        return False
    # a user may write an end that lies in the future
    return not observed.driver_polled or abs(age(seen.ended_at, now)) < REPORT_GRACE_SECONDS


def _explained(
    observed: Observed, seen: RayJobView, phase: Phase, verdict: Verdict
) -> tuple[Phase, Verdict]:
    """The verdict, as far as crashed pods or the driver's own words do not say more."""
    if phase == Phase.STARTING and observed.crashes and not seen.driver_started:
        crashed = observed.crashes[-1].cause.value
        return Phase.PENDING, Verdict(crashed, describe(observed.crashes))
    if verdict.reason != "DriverSilent":
        return phase, verdict
    if observed.driver_unauthorized:
        return phase, Verdict("DriverUnauthorized", verdict.message)
    ready = condition_of(observed.job.status, "Ready")
    if not observed.driver_polled and ready is not None:
        return phase, Verdict(ready["reason"], ready["message"])  # the operator has just started
    return phase, verdict


def _hopeless(observed: Observed, seen: RayJobView, now: datetime) -> tuple[Cause, str] | None:
    """Why an attempt is given up that KubeRay would follow without end."""
    if seen.ended or seen.held:
        return None
    then = now.timestamp() - LOST_PODS_SECONDS
    if (lost := _lost_head(observed, then) or _lost_workers(observed, then)) is not None:
        return lost.cause, lost.message
    if seen.driver_started or any(loss.of_head for loss in observed.losses):
        return None
    crash = crash_loop(observed.crashes, len(observed.pods_of_attempt))
    return None if crash is None else (crash.cause, describe(observed.crashes))


def _unheard(observed: Observed, seen: RayJobView) -> bool:
    return seen.driver_started and not observed.driver_reached


def _lost_head(observed: Observed, then: float) -> Loss | None:
    """Return the loss of a head whose driver has been silent since. KubeRay waits without end for a
    head pod that cannot end, because its node has no power."""
    if observed.driver_reached or not observed.driver_polled:
        return None
    heads = (loss for loss in observed.losses if loss.of_head)
    return next((loss for loss in heads if loss.at is not None and loss.at < then), None)


def _lost_workers(observed: Observed, then: float) -> Loss | None:
    """Return the loss of a worker if its node took all workers of a group before a time.

    KubeRay counts pods that cannot end as available, and does not replace them. Stages run in one
    group only, so a group without workers stops the job.
    """
    groups: defaultdict[str, list[Loss | None]] = defaultdict(list)
    for pod in observed.pods_of_attempt:
        if not pod.is_head and pod.ended is None:
            groups[pod.group].append(_loss_to_node(pod, then))
    return next((losses[0] for losses in groups.values() if all(losses)), None)


def _loss_to_node(pod: PodView, then: float) -> Loss | None:
    """Return the loss of a pod that its node took before a time and that has not ended since."""
    loss = pod.loss
    if loss is None or not pod.deleting or loss.cause not in (Cause.NODE_LOST, Cause.PREEMPTED):
        return None
    return loss if loss.at is not None and loss.at < then else None


def _of_silence(observed: Observed, seen: RayJobView, now: datetime) -> dict[str, str]:
    """What is said of a driver that was polled and did not answer: after a while, because at its
    start it may not answer yet; at once where it rejects the operator's token."""
    if not (observed.driver_polled and _unheard(observed, seen)):
        return {}
    began = seen.driven_since
    waits = not began or age(began, now) < SILENCE_SECONDS
    if waits and not observed.driver_unauthorized:
        return {}
    return {seen.name: observed.driver_problem or "it does not answer"}


def _advanced(job: JobView, seen: RayJobView, report: Report | None, now: datetime) -> Status:
    """The status with the rows of a report. A first report that comes late, because the operator
    was away, may hold rows of this attempt, as the last report does."""
    if report is None:
        return job.status
    if report.progress is not None:
        late = bool(seen.driven_since) and age(seen.driven_since, now) >= SILENCE_SECONDS
        ended = report.state.ended or late
        return advanced(job.status, report.progress.rows, stamp(now), ended=ended)
    return restarted(job.status, stamp(now)) if report.state == JobState.PREPARING else job.status


def _of_attempt_alone(status: Status, report: Report | None) -> Report | None:
    """The report with the rows of the attempt that goes on, without those before it."""
    if report is None or report.progress is None:
        return report
    own = (current(status) or {}).get("rows", 0)
    progress = report.progress.model_copy(update={"rows": own})
    return report.model_copy(update={"progress": progress})


def _within_time(
    observed: Observed, policies: Policies, finding: Finding, pace: float, now: datetime
) -> Actions:
    """Go on, unless a deadline has passed."""
    job = observed.job
    if (over := job_out_of_time(job, policies, now, finding)) is not None:
        return over
    unheard = finding.ray_job is not None and _unheard(observed, finding.ray_job)
    awaits = not (unheard or finding.phase == Phase.FINALIZING)
    limits = list(of_attempt(job, policies, now, _why_no_row(finding), awaits_rows=awaits))
    passed = [limit for limit in limits if limit.left <= 0]
    if passed:
        return _attempt_out_of_time(job, policies, passed[0], finding, now)
    limits += of_job(job, policies, now, gpus_now(observed))
    lefts = [limit.left for limit in limits]
    change = _change_of_backstop(job, policies, finding.ray_job)
    return Actions(status=job.status, again_after=min([pace, *lefts]), backstop=change)


def _change_of_backstop(
    job: JobView, policies: Policies, seen: RayJobView | None
) -> tuple[RayJobView, Backstop] | None:
    """When KubeRay is to end the attempt from now on; None where its RayJob says so already."""
    if seen is None or seen.deleting:
        return None
    backstop = backstop_of(job, policies, seen)
    return None if backstop == seen.backstop else (seen, backstop)


def _why_no_row(finding: Finding) -> str:
    """What keeps rows from being finished. Where nothing troubles the pods, it is a stage."""
    if finding.verdict.reason == "Running" and finding.report and finding.report.stage:
        return f"they are in stage '{finding.report.stage}'"
    return finding.verdict.message


def _attempt_out_of_time(
    job: JobView, policies: Policies, passed: Deadline, finding: Finding, now: datetime
) -> Actions:
    """The attempt's end. What kept it from its first row is the better cause, where it is known."""
    waits_for = Cause.named(finding.verdict.reason) if finding.phase == Phase.PENDING else None
    cause = waits_for or passed.cause
    return attempt_failed(job, policies, cause, passed.message, now, finding)


def _ask_again(job: JobView, seen: RayJobView, now: datetime) -> Actions:
    """The driver has spoken its last word, only it could not be heard."""
    verdict = Verdict("Finalizing", "the RayJob has ended; reading the driver's report")
    finding = Finding(Phase.FINALIZING, verdict, seen)
    status = build_status(job.status, job.generation, finding, stamp(now))
    return Actions(status=status, again_after=POLL_SECONDS)
