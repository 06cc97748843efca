"""Derives the Events that a job gets from the difference between two of its statuses."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from batchinference.spec.status import Phase
from batchinference.spec.warnings import WarningCount, summarize
from batchinference.text import counted
from batchinference_operator.status.attempts import (
    attempt_number,
    failed_attempts,
    is_running,
    last_attempt,
    newly_ended,
)
from batchinference_operator.status.conditions import (
    NOTIFIED,
    Waiting,
    find_condition,
    is_condition_true,
)
from batchinference_operator.status.job_status import Status

_ROUTINE_REASONS = frozenset(Phase)
"""Reasons that get no Event, because they only repeat the phase."""
_INTENDED_WAITS = (Waiting.ADMISSION_PENDING, Waiting.QUEUED)
"""Reasons that are no problems, so that the Event is not a warning."""


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event about a job or a schedule. `action` says what the operator does."""

    reason: str
    action: str
    note: str
    type: Literal["Normal", "Warning"] = "Normal"


def events_between(before: Status, after: Status) -> list[Event]:
    """Return the Events for the changes between two statuses, in order."""
    return [*_attempts_ended(before, after), *_job_ended(before, after), *_blocked(before, after),
            *_suspended_or_resumed(before, after), *_attempt_started(before, after),
            *_notification_failed(before, after)]  # fmt: skip


def _attempts_ended(before: Status, after: Status) -> Iterator[Event]:
    if is_condition_true(after, "Failed"):
        return  # the Event about the end of the job includes the end of the attempt
    for attempt in newly_ended(before, after):
        which = f"attempt {attempt['number']}"
        if attempt["outcome"] == "Failed":
            # a user who may write the status can leave them out
            why = [attempt[name] for name in ("cause", "message") if attempt.get(name)]
            message = ": ".join([f"{which} failed", *why])
            yield Event("AttemptFailed", "Retry", message, "Warning")
    if "nextAttemptTime" in after and failed_attempts(after) > failed_attempts(before):
        message = f"attempt {attempt_number(after) + 1} starts at {after['nextAttemptTime']}"
        yield Event("Retrying", "Retry", message)


def _job_ended(before: Status, after: Status) -> Iterator[Event]:
    for kind in ("Complete", "Failed"):
        condition, former = find_condition(after, kind), find_condition(before, kind)
        if condition.get("status") != "True":
            continue
        if former.get("status") == "True" and former["message"] == condition["message"]:
            continue
        if kind == "Complete":
            yield Event("Succeeded", "Finish", _describe_result(after, condition["message"]))
        else:
            which = f"attempt {attempt_number(after)}: " if newly_ended(before, after) else ""
            message = f"{which}{condition['reason']}: {condition['message']}"
            yield Event("Failed", "Finish", message, "Warning")


def _describe_result(status: Status, message: str) -> str:
    counts = status.get("counts")
    if counts is None:
        return message
    rows = ", ".join(f"{counts[name]} {name}" for name in ("written", "failed", "filtered"))
    counts_by_name = [WarningCount.model_validate(one) for one in status.get("warnings", ())]
    warnings = f"; warnings: {summarize(counts_by_name)}" if counts_by_name else ""
    read = counts["read"]
    return f"{counted(read, 'row')} read: {rows}{warnings}; output in {status.get('output', '')}"


def _blocked(before: Status, after: Status) -> Iterator[Event]:
    """Yield an Event if the job is blocked for a new reason. A new message with an old reason
    yields no Event, because messages may change at each reconcile."""
    now, then = find_condition(after, "Reconciling"), find_condition(before, "Reconciling")
    reason = now.get("reason")
    if reason and reason not in _ROUTINE_REASONS and reason != then.get("reason"):
        kind: Literal["Normal", "Warning"] = "Normal" if reason in _INTENDED_WAITS else "Warning"
        yield Event(reason, "Wait", now["message"] or reason, kind)


def _suspended_or_resumed(before: Status, after: Status) -> Iterator[Event]:
    if is_condition_true(after, "Suspended") and not is_condition_true(before, "Suspended"):
        yield Event("Suspended", "Suspend", "suspended; all pods are gone")
    elif is_condition_true(before, "Suspended") and not is_condition_true(after, "Suspended"):
        yield Event("Resumed", "Resume", "suspend is false again: the job continues")


def _notification_failed(before: Status, after: Status) -> Iterator[Event]:
    condition = find_condition(after, NOTIFIED)
    if condition.get("status") == "False" and not find_condition(before, NOTIFIED):
        yield Event(condition["reason"], "Notify", condition["message"], "Warning")


def _attempt_started(before: Status, after: Status) -> Iterator[Event]:
    attempt = last_attempt(after)
    if is_running(after) and attempt_number(after) > attempt_number(before):
        message = f"attempt {attempt['number']} starts as RayJob {attempt['rayJobName']}"
        yield Event("AttemptStarted", "Start", message)
