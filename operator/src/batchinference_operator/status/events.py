"""Events for users, derived from the difference between two statuses of a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from batchinference.spec.causes import Cause
from batchinference.spec.phases import Phase
from batchinference_operator.status.attempts import (
    current,
    ended_between,
    failed,
    is_open,
    number_of,
)
from batchinference_operator.status.conditions import condition_of, holds
from batchinference_operator.status.status import Status

_ORDINARY = frozenset(phase.value for phase in Phase)
"""Reasons that say no more than the phase does."""
_TROUBLES = frozenset(cause.value for cause in Cause) | {
    "NameTaken",
    "DriverSilent",
    "DriverUnauthorized",
    "ApiServerAway",
}
"""Reasons that are problems. Any other reason is an intended wait."""


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event. `action` is what the operator did, in one word."""

    reason: str
    action: str
    note: str
    type: Literal["Normal", "Warning"] = "Normal"


def events_between(before: Status, after: Status) -> list[Event]:
    """Return the Events between two statuses in order, each once.

    Equal statuses have no Events between them, and progress is not an Event.
    """
    return [*_attempts_ended(before, after), *_end(before, after), *_trouble(before, after),
            *_suspension(before, after), *_attempt_begun(before, after)]  # fmt: skip


def _attempts_ended(before: Status, after: Status) -> Iterator[Event]:
    if holds(after, "Failed"):
        return  # the Event about the end of the job includes it
    for attempt in ended_between(before, after):
        if attempt["outcome"] == "Failed":
            words = f"attempt {attempt['number']} failed: {attempt['cause']}: {attempt['message']}"
            yield Event("AttemptFailed", "Retry", words, "Warning")
    if "nextAttemptTime" in after and failed(after) > failed(before):
        words = f"attempt {number_of(after) + 1} begins at {after['nextAttemptTime']}"
        yield Event("Retrying", "Retry", words)


def _end(before: Status, after: Status) -> Iterator[Event]:
    for kind in ("Complete", "Failed"):
        ready = condition_of(after, kind)
        known = condition_of(before, kind)
        if ready is None or ready["status"] != "True":
            continue
        if holds(before, kind) and known and known["message"] == ready["message"]:
            continue
        if kind == "Complete":
            yield Event("Succeeded", "Finish", _result(after, ready["message"]))
        else:
            which = f"attempt {number_of(after)}: " if ended_between(before, after) else ""
            words = f"{which}{ready['reason']}: {ready['message']}"
            yield Event("Failed", "Finish", words, "Warning")


def _result(status: Status, message: str) -> str:
    counts = status.get("counts")
    if counts is None:
        return message
    rows = ", ".join(f"{counts[name]} {name}" for name in ("written", "failed", "skipped"))
    return f"{counts['read']} rows read: {rows}; output in {status.get('output', '')}"


def _trouble(before: Status, after: Status) -> Iterator[Event]:
    """Yield an Event when something starts to block the job.

    A new message with the same reason is not a new Event, because messages may change at each
    reconcile.
    """
    now, then = condition_of(after, "Reconciling"), condition_of(before, "Reconciling")
    if now is None or now["reason"] in _ORDINARY or (then and then["reason"] == now["reason"]):
        return
    kind: Literal["Normal", "Warning"] = "Warning" if now["reason"] in _TROUBLES else "Normal"
    yield Event(now["reason"], "Wait", now["message"] or now["reason"], kind)


def _suspension(before: Status, after: Status) -> Iterator[Event]:
    if holds(after, "Suspended") and not holds(before, "Suspended"):
        yield Event("Suspended", "Suspend", "suspended: nothing of the job is left on the cluster")
    elif holds(before, "Suspended") and not holds(after, "Suspended"):
        yield Event("Resumed", "Resume", "suspend is false again: the job goes on")


def _attempt_begun(before: Status, after: Status) -> Iterator[Event]:
    attempt = current(after)
    if attempt is not None and is_open(after) and number_of(after) > number_of(before):
        words = f"attempt {attempt['number']} begins as RayJob {attempt['rayJobName']}"
        yield Event("AttemptStarted", "Start", words)
