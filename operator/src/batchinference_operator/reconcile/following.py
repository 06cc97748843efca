"""Follows the running attempt: updates its status, or ends it."""

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
"""How long a driver may not answer after its start before the status reports it."""
REPORT_GRACE_SECONDS = 60.0
"""How long the operator waits for the last report of a RayJob that has ended."""
REPORT_MAX_AGE_SECONDS = 300.0
"""The maximum age of the last report. Many slow drivers in one namespace are polled less often."""
LOST_PODS_SECONDS = 60.0
"""How long after the loss of its head, or of all workers of a group, an attempt ends."""


def ray_job_of(observed: Observed) -> RayJobView | None:
    """Return the RayJob that has the name of the running attempt's RayJob, whoever owns it."""
    job = observed.job
    return observed.ray_jobs.get(names_of(job, number_of(job.status)).ray_job)


def _going_on(observed: Observed) -> RayJobView | None:
    """Return the RayJob of the running attempt if this job owns it."""
    job, seen = observed.job, ray_job_of(observed)
    return seen if is_open(job.status) and seen and seen.owner_uid == job.uid else None


def wants_report(observed: Observed) -> bool:
    """Return whether the driver is to be polled for its report."""
    seen = _going_on(observed)
    return seen is not None and seen.driver_started and not observed.job.deleting


def has_ended(observed: Observed) -> bool:
    """Return whether the driver has sent its final report or is known to have succeeded.

    If so, `suspend` no longer has an effect.
    """
    seen, report = _going_on(observed), observed.report
    if seen is not None and seen.succeeded:
        return True
    if report is None or not report.state.ended:
        return False
    # a failure may be the result of a preemption by Kueue, which deletes the pods
    return report.state == JobState.SUCCEEDED or seen is None or not seen.held


def follow(observed: Observed, policies: Policies, settings: Settings, now: datetime) -> Actions:
    """Return the actions that update the status of the running attempt, or end the attempt."""
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
        return actions  # do not delay the end for a Secret that the API server may reject
    # the reconcile that creates the token Secret also sets startTime in the status
    return replace(actions, create=(_token_of(job, seen, settings),))


def _without_old_report(observed: Observed) -> Observed:
    """Return the observation without a report that is too old to describe the current state."""
    if observed.report_age < REPORT_MAX_AGE_SECONDS:
        return observed
    return replace(observed, report=None, driver_reached=False)


def _lacks_something(observed: Observed) -> bool:
    """Return whether a pod misses a Secret, which may be the token Secret.

    The token Secret may be gone because its owner was an earlier RayJob of the same name that a
    user deleted.
    """
    troubles = [pod.trouble for pod in observed.pods_of_attempt]
    return any(one is not None and one.cause == Cause.CONTAINER_CONFIG for one in troubles)


def _not_there(
    job: JobView, seen: RayJobView | None, policies: Policies, settings: Settings, now: datetime
) -> Actions:
    """Return the actions for an attempt that has no RayJob.

    A user deleted the RayJob, it was not created yet, or another RayJob has its name.
    """
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
    """Return the Secret with the token. The RayJob owns it and must therefore exist first."""
    owner = Owner(seen.name, seen.uid, RAY_JOB, RAY_API_VERSION)
    names = names_of(job, number_of(job.status))
    return token_secret(job.namespace, names, settings.token(job, seen.name), owner)


def created(
    job: JobView, status: Status, body: Object, settings: Settings, now: datetime
) -> Actions:
    """Return the actions that follow the creation of a RayJob: the token Secret and the status.

    Otherwise they would wait until the watch reports the RayJob. `status` is the status that was
    decided together with the creation.
    """
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
    """Return whether the driver's last report may still arrive.

    True until the driver was polled once, and for REPORT_GRACE_SECONDS after its end.
    """
    if not _unheard(observed, seen):
        return False
    # users can write the status of a RayJob, so its end may be in the future
    return not observed.driver_polled or abs(age(seen.ended_at, now)) < REPORT_GRACE_SECONDS


def _explained(
    observed: Observed, seen: RayJobView, phase: Phase, verdict: Verdict
) -> tuple[Phase, Verdict]:
    """Return the phase and verdict, made more specific by crashed pods or the driver's answer."""
    if phase == Phase.STARTING and observed.crashes and not seen.driver_started:
        crashed = observed.crashes[-1].cause.value
        return Phase.PENDING, Verdict(crashed, describe(observed.crashes))
    if verdict.reason != "DriverSilent":
        return phase, verdict
    if observed.driver_unauthorized:
        return phase, Verdict("DriverUnauthorized", verdict.message)
    ready = condition_of(observed.job.status, "Ready")
    if not observed.driver_polled and ready is not None:
        # the operator has just started and has not polled the driver yet
        return phase, Verdict(ready["reason"], ready["message"])
    return phase, verdict


def _hopeless(observed: Observed, seen: RayJobView, now: datetime) -> tuple[Cause, str] | None:
    """Return why to give up an attempt that KubeRay would continue forever; None if it is not."""
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
    """Return the problem of a driver that was polled and did not answer, by RayJob name.

    It is reported after SILENCE_SECONDS, because a starting driver may not answer yet. If the
    driver rejects the operator's token, it is reported at once.
    """
    if not (observed.driver_polled and _unheard(observed, seen)):
        return {}
    began = seen.driven_since
    waits = not began or age(began, now) < SILENCE_SECONDS
    if waits and not observed.driver_unauthorized:
        return {}
    return {seen.name: observed.driver_problem or "it does not answer"}


def _advanced(job: JobView, seen: RayJobView, report: Report | None, now: datetime) -> Status:
    """Return the status with the rows of a report.

    The final report includes rows of this attempt. So may a first report that is late because the
    operator was down.
    """
    if report is None:
        return job.status
    if report.progress is not None:
        late = bool(seen.driven_since) and age(seen.driven_since, now) >= SILENCE_SECONDS
        ended = report.state.ended or late
        return advanced(job.status, report.progress.rows, stamp(now), ended=ended)
    return restarted(job.status, stamp(now)) if report.state == JobState.PREPARING else job.status


def _of_attempt_alone(status: Status, report: Report | None) -> Report | None:
    """Return the report with the rows of the running attempt, without those of earlier attempts."""
    if report is None or report.progress is None:
        return report
    own = (current(status) or {}).get("rows", 0)
    progress = report.progress.model_copy(update={"rows": own})
    return report.model_copy(update={"progress": progress})


def _within_time(
    observed: Observed, policies: Policies, finding: Finding, pace: float, now: datetime
) -> Actions:
    """Return the actions that continue the attempt, or end it if a deadline has passed."""
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
    """Return the new backstop deadlines of the RayJob; None if its spec has them already."""
    if seen is None or seen.deleting:
        return None
    backstop = backstop_of(job, policies, seen)
    return None if backstop == seen.backstop else (seen, backstop)


def _why_no_row(finding: Finding) -> str:
    """Return why no row is finished: the stage if the pods have no trouble, or the message."""
    if finding.verdict.reason == "Running" and finding.report and finding.report.stage:
        return f"they are in stage '{finding.report.stage}'"
    return finding.verdict.message


def _attempt_out_of_time(
    job: JobView, policies: Policies, passed: Deadline, finding: Finding, now: datetime
) -> Actions:
    """Return the actions that end an attempt after a deadline.

    If the phase is Pending and its reason is a known cause, this is the cause of the failure.
    """
    waits_for = Cause.named(finding.verdict.reason) if finding.phase == Phase.PENDING else None
    cause = waits_for or passed.cause
    return attempt_failed(job, policies, cause, passed.message, now, finding)


def _ask_again(job: JobView, seen: RayJobView, now: datetime) -> Actions:
    """Return the actions while the last report of a driver that has ended could not be read."""
    verdict = Verdict("Finalizing", "the RayJob has ended; reading the driver's report")
    finding = Finding(Phase.FINALIZING, verdict, seen)
    status = build_status(job.status, job.generation, finding, stamp(now))
    return Actions(status=status, again_after=POLL_SECONDS)
