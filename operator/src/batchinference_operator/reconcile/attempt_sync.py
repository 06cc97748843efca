"""Follows the running attempt: updates its status, or ends it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import datetime

from batchinference.rendering import RAY_API_VERSION, RAY_JOB, Backstop, Owner, token_secret
from batchinference.spec.causes import Cause
from batchinference.spec.phases import Phase
from batchinference.spec.report import JobState, Report
from batchinference_operator.reconcile.attempt_end import (
    POLL_SECONDS,
    complete_job,
    fail_attempt,
    fail_if_expired,
)
from batchinference_operator.reconcile.attempt_start import (
    CREATE_ERRORS,
    CREATE_RETRY_SECONDS,
    create_actions,
    names_of,
    requeue_for_admission,
    wait_for_name,
)
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.deadlines import (
    Deadline,
    attempt_deadlines,
    backstop_of,
    job_deadlines,
)
from batchinference_operator.reconcile.kueue import track_admission
from batchinference_operator.reconcile.policies import Policies
from batchinference_operator.reconcile.requeue import requeue_after
from batchinference_operator.reconcile.state import Actions, JobView, Observed
from batchinference_operator.reconcile.usage import current_gpus
from batchinference_operator.status.attempts import (
    attempt_number,
    is_running,
    last_attempt,
    reset_rows,
    set_start_time,
    update_rows,
)
from batchinference_operator.status.conditions import Summary, find_condition
from batchinference_operator.status.crashes import crash_loop, describe_crashes
from batchinference_operator.status.failure_cause import failure_cause
from batchinference_operator.status.job_status import Status, StatusUpdate, build_status
from batchinference_operator.status.phase import derive_phase
from batchinference_operator.status.pods import Disruption, PodView
from batchinference_operator.status.ray_job import Object, RayJobView
from batchinference_operator.status.timestamps import seconds_since, to_rfc3339

DRIVER_START_SECONDS = 60.0
"""How long a driver may not answer after its start before the status reports it."""
REPORT_GRACE_SECONDS = 60.0
"""How long the operator waits for the last report of a RayJob that has ended."""
REPORT_MAX_AGE_SECONDS = 300.0
"""The maximum age of the last report. Many slow drivers in one namespace are polled less often."""
LOST_PODS_SECONDS = 60.0
"""How long after the loss of its head, or of all workers of a group, an attempt ends."""


def attempt_ray_job(observed: Observed) -> RayJobView | None:
    """Return the RayJob that has the name of the running attempt's RayJob, whoever owns it."""
    job = observed.job
    return observed.ray_jobs.get(names_of(job, attempt_number(job.status)).ray_job)


def _owned_ray_job(observed: Observed) -> RayJobView | None:
    """Return the RayJob of the running attempt if this job owns it."""
    job, ray_job = observed.job, attempt_ray_job(observed)
    return ray_job if is_running(job.status) and ray_job and ray_job.owner_uid == job.uid else None


def polls_driver(observed: Observed) -> bool:
    """Return whether the driver is to be polled for its report."""
    ray_job = _owned_ray_job(observed)
    return ray_job is not None and ray_job.driver_started and not observed.job.deleting


def driver_ended(observed: Observed) -> bool:
    """Return whether the driver has sent its final report or is known to have succeeded.

    If so, `suspend` no longer has an effect.
    """
    ray_job, report = _owned_ray_job(observed), observed.report
    if ray_job is not None and ray_job.succeeded:
        return True
    if report is None or not report.state.ended:
        return False
    # a failure may be the result of a preemption by Kueue, which deletes the pods
    return report.state == JobState.SUCCEEDED or ray_job is None or not ray_job.suspended


def sync_attempt(observed: Observed, policies: Policies, config: Config, now: datetime) -> Actions:
    """Return the actions that update the status of the running attempt, or end the attempt."""
    observed = _without_old_report(observed)
    job, ray_job = observed.job, attempt_ray_job(observed)
    attempt = last_attempt(job.status) or {}
    if ray_job is None or ray_job.owner_uid != job.uid:
        return _without_ray_job(job, ray_job, policies, config, now)
    if "startTime" not in attempt:
        observed = replace(
            observed, job=replace(job, status=set_start_time(job.status, ray_job.created_at))
        )
    actions = _derive_status(observed, ray_job, policies, now)
    if "startTime" in attempt and not _secret_missing(observed):
        return actions
    if actions.status is not None and not is_running(actions.status):
        return actions  # do not delay the end for a Secret that the API server may reject
    # the reconcile that creates the token Secret also sets startTime in the status
    return replace(actions, create=(_token_secret(job, ray_job, config),))


def _without_old_report(observed: Observed) -> Observed:
    """Return the observation without a report that is too old to describe the current state."""
    if observed.report_age < REPORT_MAX_AGE_SECONDS:
        return observed
    return replace(observed, report=None, driver_reached=False)


def _secret_missing(observed: Observed) -> bool:
    """Return whether a pod misses a Secret, which may be the token Secret.

    The token Secret may be gone because its owner was an earlier RayJob of the same name that a
    user deleted.
    """
    problems = [pod.problem for pod in observed.pods_of_attempt]
    return any(one is not None and one.cause == Cause.CONTAINER_CONFIG for one in problems)


def _without_ray_job(
    job: JobView, ray_job: RayJobView | None, policies: Policies, config: Config, now: datetime
) -> Actions:
    """Return the actions for an attempt that has no RayJob.

    A user deleted the RayJob, it was not created yet, or another RayJob has its name.
    """
    names = names_of(job, attempt_number(job.status))
    if "startTime" in (last_attempt(job.status) or {}):
        message = f"RayJob {names.ray_job} was deleted before the job ended"
        return fail_attempt(job, policies, Cause.RAY_JOB_DELETED, message, now)
    if (over := fail_if_expired(job, policies, now)) is not None:
        return over
    limited = config.concurrency.limited
    not_made = (find_condition(job.status, "Ready") or {}).get("reason") in CREATE_ERRORS
    if ray_job is None and not (limited and not_made):
        return create_actions(job, names, config, now)
    job = requeue_for_admission(job, now) if limited else job
    if ray_job is None:
        return Actions(status=job.status, requeue_after=CREATE_RETRY_SECONDS)
    return wait_for_name(job, ray_job, now)


def _token_secret(job: JobView, ray_job: RayJobView, config: Config) -> Object:
    """Return the Secret with the token. The RayJob owns it and must therefore exist first."""
    owner = Owner(ray_job.name, ray_job.uid, RAY_JOB, RAY_API_VERSION)
    names = names_of(job, attempt_number(job.status))
    return token_secret(job.namespace, names, config.token(job, ray_job.name), owner)


def after_create(
    job: JobView, status: Status, body: Object, config: Config, now: datetime
) -> Actions:
    """Return the actions that follow the creation of a RayJob: the token Secret and the status.

    Otherwise they would wait until the watch reports the RayJob. `status` is the status that was
    decided together with the creation.
    """
    ray_job = RayJobView.of(body)
    observed = Observed(replace(job, status=status), {ray_job.name: ray_job})
    policies = Policies.of(job.spec, config.defaults.limits)
    return sync_attempt(observed, policies, config, now)


def _derive_status(
    observed: Observed, ray_job: RayJobView, policies: Policies, now: datetime
) -> Actions:
    observed = track_admission(observed, ray_job, now)
    job, report = observed.job, observed.report
    if ray_job.ended and _awaits_report(observed, ray_job, now):
        return _wait_for_report(job, ray_job, now)
    job = replace(job, status=_update_rows(job, ray_job, report, now))
    output = str(job.spec.get("write", {}).get("path", ""))
    told = {**observed.messages, **_driver_problem(observed, ray_job, now)}
    before = job.status.get("phase", "")
    alone = _own_progress(job.status, report)
    phase, summary = derive_phase(ray_job, observed.pods_of_attempt, alone, output, before, told)
    phase, summary = _explain(observed, ray_job, phase, summary)
    update = StatusUpdate(phase, summary, ray_job, report)
    if summary.complete:
        return complete_job(job, update, now)
    if summary.failed:
        cause, message = failure_cause(ray_job, report, observed.disruptions)
        return fail_attempt(job, policies, cause, message, now, update)
    if (hopeless := _unrecoverable(observed, ray_job, now)) is not None:
        return fail_attempt(job, policies, *hopeless, now, update)
    status = build_status(job.status, job.generation, update, to_rfc3339(now))
    interval, observed = (
        requeue_after(observed, ray_job),
        replace(observed, job=replace(job, status=status)),
    )
    return _enforce_deadlines(observed, policies, update, interval, now)


def _awaits_report(observed: Observed, ray_job: RayJobView, now: datetime) -> bool:
    """Return whether the driver's last report may still arrive.

    True until the driver was polled once, and for REPORT_GRACE_SECONDS after its end.
    """
    if not _driver_unreachable(observed, ray_job):
        return False
    # users can write the status of a RayJob, so its end may be in the future
    return (
        not observed.driver_polled
        or abs(seconds_since(ray_job.ended_at, now)) < REPORT_GRACE_SECONDS
    )


def _explain(
    observed: Observed, ray_job: RayJobView, phase: Phase, summary: Summary
) -> tuple[Phase, Summary]:
    """Return the phase and verdict, made more specific by crashed pods or the driver's answer."""
    if phase == Phase.STARTING and observed.crashes and not ray_job.driver_started:
        crashed = observed.crashes[-1].cause.value
        return Phase.PENDING, Summary(crashed, describe_crashes(observed.crashes))
    if summary.reason != "DriverSilent":
        return phase, summary
    if observed.driver_unauthorized:
        return phase, Summary("DriverUnauthorized", summary.message)
    ready = find_condition(observed.job.status, "Ready")
    if not observed.driver_polled and ready is not None:
        # the operator has just started and has not polled the driver yet
        return phase, Summary(ready["reason"], ready["message"])
    return phase, summary


def _unrecoverable(
    observed: Observed, ray_job: RayJobView, now: datetime
) -> tuple[Cause, str] | None:
    """Return why to give up an attempt that KubeRay would continue forever; None if it is not."""
    if ray_job.ended or ray_job.suspended:
        return None
    then = now.timestamp() - LOST_PODS_SECONDS
    if (lost := _lost_head(observed, then) or _lost_workers(observed, then)) is not None:
        return lost.cause, lost.message
    if ray_job.driver_started or any(disruption.of_head for disruption in observed.disruptions):
        return None
    crash = crash_loop(observed.crashes, len(observed.pods_of_attempt))
    return None if crash is None else (crash.cause, describe_crashes(observed.crashes))


def _driver_unreachable(observed: Observed, ray_job: RayJobView) -> bool:
    return ray_job.driver_started and not observed.driver_reached


def _lost_head(observed: Observed, then: float) -> Disruption | None:
    """Return the loss of a head whose driver has been silent since. KubeRay waits without end for a
    head pod that cannot end, because its node has no power."""
    if observed.driver_reached or not observed.driver_polled:
        return None
    heads = (disruption for disruption in observed.disruptions if disruption.of_head)
    return next(
        (disruption for disruption in heads if disruption.at is not None and disruption.at < then),
        None,
    )


def _lost_workers(observed: Observed, then: float) -> Disruption | None:
    """Return the loss of a worker if its node took all workers of a group before a time.

    KubeRay counts pods that cannot end as available, and does not replace them. Stages run in one
    group only, so a group without workers stops the job.
    """
    groups: defaultdict[str, list[Disruption | None]] = defaultdict(list)
    for pod in observed.pods_of_attempt:
        if not pod.is_head and pod.ended is None:
            groups[pod.group].append(_loss_to_node(pod, then))
    return next((disruptions[0] for disruptions in groups.values() if all(disruptions)), None)


def _loss_to_node(pod: PodView, then: float) -> Disruption | None:
    """Return the loss of a pod that its node took before a time and that has not ended since."""
    disruption = pod.disruption
    if (
        disruption is None
        or not pod.deleting
        or disruption.cause not in (Cause.NODE_LOST, Cause.PREEMPTED)
    ):
        return None
    return disruption if disruption.at is not None and disruption.at < then else None


def _driver_problem(observed: Observed, ray_job: RayJobView, now: datetime) -> dict[str, str]:
    """Return the problem of a driver that was polled and did not answer, by RayJob name.

    It is reported after SILENCE_SECONDS, because a starting driver may not answer yet. If the
    driver rejects the operator's token, it is reported at once.
    """
    if not (observed.driver_polled and _driver_unreachable(observed, ray_job)):
        return {}
    began = ray_job.driver_started_at
    waits = not began or seconds_since(began, now) < DRIVER_START_SECONDS
    if waits and not observed.driver_unauthorized:
        return {}
    return {ray_job.name: observed.driver_problem or "it does not answer"}


def _update_rows(job: JobView, ray_job: RayJobView, report: Report | None, now: datetime) -> Status:
    """Return the status with the rows of a report.

    The final report includes rows of this attempt. So may a first report that is late because the
    operator was down.
    """
    if report is None:
        return job.status
    if report.progress is not None:
        late = (
            bool(ray_job.driver_started_at)
            and seconds_since(ray_job.driver_started_at, now) >= DRIVER_START_SECONDS
        )
        ended = report.state.ended or late
        return update_rows(job.status, report.progress.rows, to_rfc3339(now), ended=ended)
    return (
        reset_rows(job.status, to_rfc3339(now))
        if report.state == JobState.PREPARING
        else job.status
    )


def _own_progress(status: Status, report: Report | None) -> Report | None:
    """Return the report with the rows of the running attempt, without those of earlier attempts."""
    if report is None or report.progress is None:
        return report
    own = (last_attempt(status) or {}).get("rows", 0)
    progress = report.progress.model_copy(update={"rows": own})
    return report.model_copy(update={"progress": progress})


def _enforce_deadlines(
    observed: Observed, policies: Policies, update: StatusUpdate, interval: float, now: datetime
) -> Actions:
    """Return the actions that continue the attempt, or end it if a deadline has passed."""
    job = observed.job
    if (over := fail_if_expired(job, policies, now, update)) is not None:
        return over
    unheard = update.ray_job is not None and _driver_unreachable(observed, update.ray_job)
    awaits = not (unheard or update.phase == Phase.FINALIZING)
    limits = list(attempt_deadlines(job, policies, now, _why_no_row(update), awaits_rows=awaits))
    passed = [limit for limit in limits if limit.left <= 0]
    if passed:
        return _fail_expired(job, policies, passed[0], update, now)
    limits += job_deadlines(job, policies, now, current_gpus(observed))
    lefts = [limit.left for limit in limits]
    change = _backstop_change(job, policies, update.ray_job)
    return Actions(status=job.status, requeue_after=min([interval, *lefts]), update_backstop=change)


def _backstop_change(
    job: JobView, policies: Policies, ray_job: RayJobView | None
) -> tuple[RayJobView, Backstop] | None:
    """Return the new backstop deadlines of the RayJob; None if its spec has them already."""
    if ray_job is None or ray_job.deleting:
        return None
    backstop = backstop_of(job, policies, ray_job)
    return None if backstop == ray_job.backstop else (ray_job, backstop)


def _why_no_row(update: StatusUpdate) -> str:
    """Return why no row is finished: the stage if the pods have no trouble, or the message."""
    if update.summary.reason == "Running" and update.report and update.report.stage:
        return f"they are in stage '{update.report.stage}'"
    return update.summary.message


def _fail_expired(
    job: JobView, policies: Policies, passed: Deadline, update: StatusUpdate, now: datetime
) -> Actions:
    """Return the actions that end an attempt after a deadline.

    If the phase is Pending and its reason is a known cause, this is the cause of the failure.
    """
    waits_for = Cause.named(update.summary.reason) if update.phase == Phase.PENDING else None
    cause = waits_for or passed.cause
    return fail_attempt(job, policies, cause, passed.message, now, update)


def _wait_for_report(job: JobView, ray_job: RayJobView, now: datetime) -> Actions:
    """Return the actions while the last report of a driver that has ended could not be read."""
    summary = Summary("Finalizing", "the RayJob has ended; reading the driver's report")
    update = StatusUpdate(Phase.FINALIZING, summary, ray_job)
    status = build_status(job.status, job.generation, update, to_rfc3339(now))
    return Actions(status=status, requeue_after=POLL_SECONDS)
