"""Updates the status of the running attempt, or ends the attempt."""

from dataclasses import replace
from datetime import datetime

from batchinference.spec.causes import Cause
from batchinference.spec.status import Phase
from batchinference_operator.reconcile.attempt_objects import create_actions, objects_of_ray_job
from batchinference_operator.reconcile.attempt_start import wait_for_name
from batchinference_operator.reconcile.capacity_wait import capacity_deadline, track_waiting
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.create_errors import (
    CREATE_RETRY_SECONDS,
    has_create_error,
    requeue_for_admission,
)
from batchinference_operator.reconcile.deadlines import (
    attempt_deadlines,
    job_deadlines,
    ray_deadlines,
)
from batchinference_operator.reconcile.device_usage import current_devices
from batchinference_operator.reconcile.driver_silence import (
    awaits_report,
    driver_problem,
    driver_starting,
    driver_unreachable,
    with_cause_of_silence,
)
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.kuberay_silence import kuberay_problem
from batchinference_operator.reconcile.kueue import needs_release, track_kueue_admission
from batchinference_operator.reconcile.lost_or_crashed_pods import (
    current_crashes,
    describe_crashes,
    record_driver_head,
    unrecoverable_failure,
)
from batchinference_operator.reconcile.mutable_spec import MutableSpec
from batchinference_operator.reconcile.observed_and_actions import Actions, Observed
from batchinference_operator.reconcile.out_of_memory import (
    memory_of_next_attempt,
    record_out_of_memory,
)
from batchinference_operator.reconcile.requeue import POLL_SECONDS, requeue_after
from batchinference_operator.reconcile.retry_or_fail import fail_attempt, fail_if_expired
from batchinference_operator.status.attempts import (
    end_attempt,
    is_running,
    last_attempt,
    record_ray_job,
)
from batchinference_operator.status.conditions import Summary
from batchinference_operator.status.failure_cause import failure_cause, ray_job_deleted
from batchinference_operator.status.faulty_nodes import faulty_nodes, record_faulty_nodes
from batchinference_operator.status.job_status import StatusUpdate
from batchinference_operator.status.phase import derive_phase, makes_progress
from batchinference_operator.status.ray_job_view import RayJobView
from batchinference_operator.status.row_counts import own_progress, record_rows, without_decrease
from batchinference_operator.status.timestamps import to_rfc3339


def sync_attempt(observed: Observed, spec: MutableSpec, config: Config, now: datetime) -> Actions:
    """Return the actions that update the status of the running attempt, or end the attempt."""
    job, ray_job = observed.job, observed.ray_job
    attempt = last_attempt(job.status)
    if ray_job is None or ray_job.owner_uid != job.uid:
        return _without_ray_job(job, ray_job, spec, config, now)
    job = job.with_status(record_faulty_nodes(job.status, observed.report))
    if "startTime" not in attempt:
        raised = memory_of_next_attempt(job.status, spec.retry.out_of_memory)
        job = job.with_status(record_ray_job(job.status, ray_job, raised))
    observed = replace(observed, job=job)
    actions = _derive_status(observed, ray_job, spec, now)
    if "startTime" in attempt and not _secret_missing(observed):
        return actions
    if actions.status is not None and not is_running(actions.status):
        return actions  # a Secret that the API server rejects must not prevent the end
    # the first reconcile with the RayJob creates the token Secret, and then writes `startTime`
    return replace(actions, create=objects_of_ray_job(job, ray_job, config))


def _secret_missing(observed: Observed) -> bool:
    """Return whether a pod may miss the token Secret. The Secret is gone if its owner, an earlier
    RayJob of this name, was deleted."""
    problems = [pod.problem for pod in observed.pods_of_attempt if pod.problem is not None]
    return any(problem.cause == Cause.CONTAINER_CONFIG for problem in problems)


def _without_ray_job(
    job: JobView, ray_job: RayJobView | None, spec: MutableSpec, config: Config, now: datetime
) -> Actions:
    """Return the actions for an attempt whose RayJob was deleted, or is not created yet. `ray_job`
    is the RayJob of another owner that has its name, if there is one."""
    names = job.last_attempt_names
    if "startTime" in last_attempt(job.status):
        return fail_attempt(job, spec, ray_job_deleted(names.ray_job), now, None)
    if (expired := fail_if_expired(job, spec, now)) is not None:
        return expired
    limited = config.concurrency.has_limit
    if ray_job is None and not (limited and has_create_error(job)):
        return create_actions(job, names, config, now)
    job = requeue_for_admission(job, now) if limited else job
    if ray_job is None:
        return Actions(status=job.status, requeue_after=CREATE_RETRY_SECONDS)
    return wait_for_name(job, ray_job, now)


def _derive_status(
    observed: Observed, ray_job: RayJobView, spec: MutableSpec, now: datetime
) -> Actions:
    """Return the actions that write the observed status of the attempt, or end the attempt."""
    observed = track_kueue_admission(observed, ray_job, now)
    job, report = observed.job, observed.report
    if ray_job.ended and awaits_report(observed, ray_job, now):
        summary = Summary("Finalizing", "the RayJob has ended; reading the driver's report")
        status = job.build_status(StatusUpdate(Phase.FINALIZING, summary, ray_job), now)
        return Actions(status=status, requeue_after=POLL_SECONDS)
    started = not driver_starting(ray_job, now)
    status = record_rows(job.status, report, to_rfc3339(now), may_include_rows=started)
    status = record_driver_head(status, observed, ray_job)
    job = job.with_status(track_waiting(status, observed, ray_job, now))
    observed = replace(observed, job=job)
    phase, summary = _observed_phase(observed, ray_job, now)
    update = StatusUpdate(phase, summary, ray_job, without_decrease(job.status, report))
    if summary.complete:
        status = end_attempt(job.build_status(update, now), "Succeeded", to_rfc3339(now))
        return Actions(status=status, requeue_after=0)
    failure = unrecoverable_failure(observed, ray_job, now)
    if summary.failed:
        failure = failure_cause(ray_job, report, observed.disruption)
    if failure is not None:
        job = record_out_of_memory(observed, ray_job, failure[0])
        return fail_attempt(job, spec, failure, now, update)
    observed = replace(observed, job=job.with_status(job.build_status(update, now)))
    return _enforce_deadlines(observed, ray_job, spec, update, now)


def _phase_before(observed: Observed, ray_job: RayJobView, now: datetime) -> str:
    """Return the phase in the status; empty if the driver answers and has just started. A driver
    that KubeRay has started again has no report yet."""
    restarting = observed.driver_reached and driver_starting(ray_job, now)
    return "" if restarting else str(observed.job.status.get("phase", ""))


def _observed_phase(
    observed: Observed, ray_job: RayJobView, now: datetime
) -> tuple[Phase, Summary]:
    """Return the phase and the summary, with more details if KubeRay does nothing, pods crash, the
    driver is silent, or nodes are excluded."""
    job, own = observed.job, own_progress(observed.job.status, observed.report)
    phase, summary = derive_phase(
        ray_job,
        observed.pods_of_attempt,
        own,
        output=str(job.spec.get("write", {}).get("path", "")),
        before=_phase_before(observed, ray_job, now),
        messages={**observed.messages, **driver_problem(observed, ray_job, now)},
    )
    if phase == Phase.STARTING and (problem := kuberay_problem(observed, ray_job, now)):
        return phase, problem
    crash = _summary_of_crashes(observed, ray_job)
    if crash is not None and phase in (Phase.STARTING, Phase.RUNNING) and summary.reason == phase:
        return phase if makes_progress(phase, own) else Phase.PENDING, crash
    return phase, _with_excluded_nodes(job, with_cause_of_silence(observed, summary))


def _summary_of_crashes(observed: Observed, ray_job: RayJobView) -> Summary | None:
    """Return the summary of a job whose pods crash; None if none does. After the driver's start,
    only rejections by nodes count, because Ray and the driver's report tell of other crashes."""
    crashes = current_crashes(observed)
    if not crashes or (ray_job.driver_started and not crashes[-1].rejected):
        return None
    return Summary(crashes[-1].cause.value, describe_crashes(crashes))


def _with_excluded_nodes(job: JobView, summary: Summary) -> Summary:
    """Return the summary. If it is Unschedulable, add the nodes that the attempt must not use."""
    earlier = {"attempts": job.status["attempts"][:-1]}
    if summary.reason != Cause.UNSCHEDULABLE or not (nodes := faulty_nodes(earlier)):
        return summary
    excluded = f"Nodes with faulty devices are excluded: {', '.join(nodes)}"
    fix = "To use them again, suspend the job and resume it"
    return replace(summary, message=f"{summary.message}. {excluded}. {fix}")


def _enforce_deadlines(
    observed: Observed, ray_job: RayJobView, spec: MutableSpec, update: StatusUpdate, now: datetime
) -> Actions:
    """Return the actions that continue the attempt, or end it if a deadline has passed."""
    job = observed.job
    if (expired := fail_if_expired(job, spec, now, update)) is not None:
        return expired
    silent = driver_unreachable(observed, ray_job)
    # a silent driver gets no exemption in the phase Finalizing, but it must have been polled
    awaits = observed.answer is not None if silent else update.phase != Phase.FINALIZING
    why = _why_no_row(update)
    limits = list(attempt_deadlines(job, spec, now, why, awaits_rows=awaits))
    limits += capacity_deadline(observed, ray_job, now, why)
    if passed := [limit for limit in limits if limit.remaining <= 0]:
        cause = _cause_at_deadline(passed[0].cause, ray_job, update)
        job = record_out_of_memory(observed, ray_job, cause)
        return fail_attempt(job, spec, (cause, passed[0].message), now, update)
    limits += job_deadlines(job, spec, now, current_devices(observed))
    interval, deadlines = requeue_after(observed, ray_job, now), ray_deadlines(job, spec, ray_job)
    changed = deadlines != ray_job.deadlines and not ray_job.deleting
    return Actions(
        status=job.status,
        requeue_after=min([interval, *(limit.remaining for limit in limits)]),
        update_deadlines=(ray_job, deadlines) if changed else None,
        release_pods=ray_job if needs_release(observed, ray_job, now) else None,
    )


def _why_no_row(update: StatusUpdate) -> str:
    """Return why no row is finished: the current stage, or the message of the summary."""
    if update.summary.reason == "Running" and update.report and update.report.stage:
        return f"they are in stage '{update.report.stage}'"
    return update.summary.message


def _cause_at_deadline(cause: Cause, ray_job: RayJobView, update: StatusUpdate) -> Cause:
    """Return the cause of an attempt that ends at a deadline. `cause` is the deadline's cause.

    If a problem keeps the attempt Pending, the result is the cause of the problem, such as
    ImagePull, unless `cause` is NoCapacity. With a next choice, NoCapacity replaces Unschedulable.
    """
    if update.phase == Phase.PENDING and cause != Cause.NO_CAPACITY:
        cause = Cause.from_name(update.summary.reason) or cause
    has_next = ray_job.choice is not None and ray_job.choice.after is not None
    return Cause.NO_CAPACITY if has_next and cause == Cause.UNSCHEDULABLE else cause
