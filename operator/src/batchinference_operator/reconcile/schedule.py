"""Decides what to do next with a BatchInferenceSchedule: which runs to create and to delete.

The rules are those of a CronJob. `batchinference.spec.cron` computes the scheduled times, even
around clock changes. If several times are due, only the last one runs. The name of a run contains
its scheduled time, so a restart of the operator does not create a second run.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar, Self

from batchinference.rendering import Names, Owner
from batchinference.spec import SpecError
from batchinference.spec.causes import Cause
from batchinference.spec.durations import seconds_of, time_of
from batchinference.spec.job import SCHEDULE_KIND
from batchinference.spec.schedule import BatchInferenceSchedule, parse_schedule
from batchinference_operator.reconcile.attempt_objects import create_actions
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.job_view import JobView, ResourceView
from batchinference_operator.reconcile.unsent_notifications import unsent_notifications
from batchinference_operator.status.conditions import (
    Summary,
    Waiting,
    conditions_of,
    find_condition,
    is_condition_true,
)
from batchinference_operator.status.job_events import Event
from batchinference_operator.status.job_status import Status, without
from batchinference_operator.status.ray_job_view import Object, owner_uid
from batchinference_operator.status.timestamps import to_rfc3339


@dataclass(frozen=True)
class ScheduleView(ResourceView):
    """A BatchInferenceSchedule."""

    kind: ClassVar[str] = SCHEDULE_KIND

    def owns(self, body: Object) -> bool:
        """Return whether the schedule created a BatchInference."""
        return owner_uid(body, SCHEDULE_KIND) == self.uid


@dataclass(frozen=True)
class Run:
    """A BatchInference that the schedule created."""

    name: str
    uid: str
    complete: bool
    failed: bool
    ended_at: str
    notifies: bool
    """Whether notifications about its end are still to be sent."""

    @classmethod
    def of(cls, body: Object) -> Self:
        """Return a BatchInference as a run."""
        job = JobView.of(body)
        return cls(
            name=job.name,
            uid=job.uid,
            complete=is_condition_true(job.status, "Complete"),
            failed=is_condition_true(job.status, "Failed"),
            ended_at=job.status.get("completionTime", ""),
            notifies=bool(unsent_notifications(job)),
        )

    @property
    def active(self) -> bool:
        """Whether the run is not finished."""
        return not (self.complete or self.failed)


RESYNC_SECONDS = 600.0
"""Maximum requeue interval of a schedule, in case the clock changes or a watch misses an event."""
CLOCK_SKEW = timedelta(minutes=1)
MAX_ACTIVE = 100
"""Maximum number of active runs that the status lists."""
_SCHEDULED = Summary("Scheduled", "runs are created at their scheduled times")
_ROUTINE_REASONS = ("Scheduled", "Suspended")
"""Reasons of the condition Ready that get no Event."""


@dataclass(frozen=True)
class ObservedSchedule:
    """A schedule, its runs, and the problem if the next run could not be created."""

    schedule: ScheduleView
    runs: tuple[Run, ...] = ()
    name_in_use: str = ""
    """The name of the next run if a BatchInference that is no run has this name; else empty."""
    refused: str = ""
    """Why no run can be created: the server refused it, or there are too many runs; else empty."""


@dataclass(frozen=True)
class ScheduleActions:
    """The actions in the order of execution. Events are posted with the status, if there is one."""

    create: Object | None = None
    replace: tuple[Run, ...] = ()
    """Active runs to delete, because the created run replaces them."""
    status: Status | None = None
    prune: tuple[Run, ...] = ()
    """Finished runs to delete, because of the history limits."""
    events: tuple[Event, ...] = ()
    requeue_after: float = RESYNC_SECONDS


@dataclass(frozen=True)
class _DueTime:
    """The last due time of a valid schedule."""

    observed: ObservedSchedule
    parsed: BatchInferenceSchedule
    checked: datetime
    """The time up to which all scheduled times have run or were missed."""
    time: datetime | None
    count: int
    """The number of due times."""
    now: datetime


def decide(observed: ObservedSchedule, config: Config, now: datetime) -> ScheduleActions:
    """Return the actions for a schedule."""
    schedule = observed.schedule
    if schedule.deleting:
        return ScheduleActions()
    try:
        parsed = parse_schedule(schedule.document)
    except SpecError as error:
        return _invalid(observed, "; ".join(str(error).splitlines()), now)
    checked = _checked_until(schedule, _schedule_key(parsed), now)
    cron = parsed.spec.cron
    time, count = cron.due(checked, now)
    next_time = cron.next(max(now, checked))
    if problem := _template_problem(parsed, time or next_time or now, config, now):
        return _invalid(observed, f"the template is invalid: {problem}", now)
    due = _DueTime(observed, parsed, checked, time, count, now)
    summary, actions = _check_due_time(due)
    status = _status(due, summary, actions) | {"observedSchedule": _schedule_key(parsed)}
    requeue_after = RESYNC_SECONDS
    if next_time and not parsed.spec.suspend:
        status["nextScheduleTime"] = to_rfc3339(next_time)
        requeue_after = min((next_time - now).total_seconds(), RESYNC_SECONDS)
    return replace(
        actions,
        status=status,
        prune=tuple(_runs_to_prune(parsed, observed.runs)),
        events=(*actions.events, *_problem_event(schedule.status, status)),
        requeue_after=requeue_after,
    )


def _schedule_key(parsed: BatchInferenceSchedule) -> str:
    return f"{parsed.spec.schedule} {parsed.spec.time_zone}"


def _checked_until(schedule: ScheduleView, key: str, now: datetime) -> datetime:
    """Return the time up to which all scheduled times have run or were missed. The result is `now`
    if `schedule` or `timeZone` has changed; for a new schedule, its creation."""
    status = schedule.status
    if status.get("observedSchedule", key) != key:
        return now
    return time_of(status.get("checkedUntil", schedule.created_at)) or now


def _template_problem(
    parsed: BatchInferenceSchedule, time: datetime, config: Config, now: datetime
) -> str:
    """Return why a run at this time would be invalid; empty if it would be valid."""
    body = parsed.run(time)
    name, namespace = body["metadata"]["name"], str(body["metadata"]["namespace"])
    job = JobView(namespace, name, "", 0, "", body["spec"], {})
    actions = create_actions(job, Names(name, "", 1), config, now)
    return str(find_condition(actions.status or {}, "Failed").get("message", ""))


def _check_due_time(due: _DueTime) -> tuple[Summary, ScheduleActions]:
    """Return what happens at the last due time, if there is one: the summary of the conditions, and
    the actions. Their status has only changed fields."""
    if due.checked > due.now + CLOCK_SKEW:
        message = (
            f"the operator's clock is behind status.checkedUntil ({to_rfc3339(due.checked)}), "
            "before which no run starts. Correct the clock, or create the schedule again"
        )
        return Summary(Waiting.CLOCK_BEHIND, message, failed=True), ScheduleActions()
    if due.parsed.spec.suspend:
        return Summary("Suspended", "spec.suspend is true"), ScheduleActions()
    return (_SCHEDULED, ScheduleActions()) if due.time is None else _run_due_time(due, due.time)


def _run_due_time(due: _DueTime, time: datetime) -> tuple[Summary, ScheduleActions]:
    """Return whether the run of the last due time starts, waits or is missed, and the actions."""
    observed, count, body = due.observed, due.count, due.parsed.run(time)
    schedule, name, at = observed.schedule, body["metadata"]["name"], to_rfc3339(time)
    owner = Owner(schedule.name, schedule.uid, schedule.kind)
    body["metadata"]["ownerReferences"] = [owner.reference()]
    others = tuple(run for run in observed.runs if run.active and run.name != name)
    exists = any(run.name == name for run in observed.runs)
    if not exists:
        if why := _why_missed(due, name, (due.now - time).total_seconds()):
            event = _missed_event(count, f"up to {at}: {why}")
            return _SCHEDULED, ScheduleActions(status=_checked(due, time, count), events=(event,))
        if waits := _why_waiting(due, others, time):
            return waits, ScheduleActions()
    skipped = f"before {at}: only the last due time runs"
    return _SCHEDULED, ScheduleActions(
        create=None if exists else body,
        replace=others if due.parsed.spec.concurrency_policy == "Replace" else (),
        status={**_checked(due, time, count - 1), "lastScheduleTime": at},
        events=(
            *(() if exists else [Event("RunCreated", "Create", f"created {name}")]),
            *([_missed_event(count - 1, skipped)] if count > 1 else ()),
        ),
    )


def _checked(due: _DueTime, until: datetime, missed: int) -> Status:
    """Return the fields of the status that record which scheduled times have run or were missed."""
    missed += due.observed.schedule.status.get("missedRuns", 0)
    return {"checkedUntil": to_rfc3339(until), "missedRuns": missed}


def _why_missed(due: _DueTime, name: str, late: float) -> str:
    """Return why there will be no run for the last due time; empty if there may be one."""
    deadline = due.parsed.spec.starting_deadline
    if deadline is not None and late > seconds_of(deadline):
        return f"{late:.0f} s late, with startingDeadline {deadline}"
    return f"another BatchInference is named {name}" if due.observed.name_in_use == name else ""


def _why_waiting(due: _DueTime, others: tuple[Run, ...], time: datetime) -> Summary | None:
    """Return why the run for the last due time must wait; None if it need not wait."""
    if others and due.parsed.spec.concurrency_policy == "Forbid":
        message = f"{to_rfc3339(time)} waits for {others[0].name} (concurrencyPolicy Forbid)"
        return Summary(Waiting.RUN_ACTIVE, message)
    if refused := due.observed.refused:
        return Summary(Cause.REFUSED.value, refused, failed=True)
    return None


def _missed_event(count: int, why: str) -> Event:
    return Event("RunsMissed", "Skip", f"missed {count} scheduled time(s) {why}", "Warning")


def _status(due: _DueTime, summary: Summary, actions: ScheduleActions) -> Status:
    """Return the status of a valid schedule, without `nextScheduleTime`."""
    schedule, runs = due.observed.schedule, due.observed.runs
    gone = {run.name for run in actions.replace}
    active = [run.name for run in runs if run.active and run.name not in gone]
    if actions.create is not None:
        active.append(actions.create["metadata"]["name"])
    status = _with_conditions(schedule, summary, active, due.now)
    ends = [run.ended_at for run in runs if run.complete]
    if last := max([status.get("lastSuccessfulTime", ""), *ends]):
        status["lastSuccessfulTime"] = last
    return {**status, **_checked(due, due.checked, 0), **(actions.status or {})}


def _with_conditions(
    schedule: ScheduleView, summary: Summary, active: list[str], now: datetime
) -> Status:
    """Return the status with the fields that are also written for an invalid schedule."""
    is_true = {"Ready": not summary.failed, "Stalled": summary.failed}
    before, generation = schedule.status.get("conditions", []), schedule.generation
    return {
        **without(schedule.status, "nextScheduleTime"),
        "observedGeneration": generation,
        "conditions": conditions_of(is_true, summary, before, generation, to_rfc3339(now)),
        "active": active[:MAX_ACTIVE],
    }


def _invalid(observed: ObservedSchedule, message: str, now: datetime) -> ScheduleActions:
    """Return the actions for an invalid schedule, which creates no runs."""
    schedule, summary = observed.schedule, Summary(Cause.INVALID_SPEC.value, message, failed=True)
    active = [run.name for run in observed.runs if run.active]
    status = _with_conditions(schedule, summary, active, now)
    return ScheduleActions(status=status, events=tuple(_problem_event(schedule.status, status)))


def _runs_to_prune(parsed: BatchInferenceSchedule, runs: tuple[Run, ...]) -> Iterator[Run]:
    """Yield the oldest finished runs beyond the history limits, unless they must still notify."""
    complete = [run for run in runs if run.complete]
    failed = [run for run in runs if run.failed]
    for ended, limit in (
        (complete, parsed.spec.successful_runs_history_limit),
        (failed, parsed.spec.failed_runs_history_limit),
    ):
        yield from (run for run in ended[: max(0, len(ended) - limit)] if not run.notifies)


def _problem_event(before: Status, after: Status) -> Iterator[Event]:
    """Yield an Event if Ready has a new reason or message, unless the reason is routine."""
    old, new = find_condition(before, "Ready"), find_condition(after, "Ready")
    changed = any(new[name] != old.get(name) for name in ("reason", "message"))
    if changed and new["reason"] not in _ROUTINE_REASONS:
        yield Event(new["reason"], "Reconcile", new["message"], "Warning")
