"""Reads and updates the attempts in a status: the running attempt and the ended ones."""

from collections.abc import Collection
from typing import Any

from batchinference.rendering import Names
from batchinference.spec.causes import Cause
from batchinference.text import in_one_line
from batchinference_operator.status.job_status import Status, with_internal, without
from batchinference_operator.status.ray_job_view import RayJobView

MAX_ATTEMPTS = 20
"""Maximum number of attempts that a status lists. The oldest ones are removed."""
MAX_ATTEMPT_MESSAGE = 1024
_OF_ATTEMPT = ("progressTime", "usageTime", "driverHead", "gapSince")
"""Bookkeeping about the last attempt, which the next attempt starts without."""
Attempt = dict[str, Any]


def last_attempt(status: Status) -> Attempt:
    """Return the last attempt; empty if there is none yet."""
    attempts: list[Attempt] = status.get("attempts", [])
    return attempts[-1] if attempts else {}


def is_running(status: Status) -> bool:
    """Return whether the last attempt is still running."""
    last = last_attempt(status)
    return bool(last) and "outcome" not in last


def attempt_number(status: Status) -> int:
    """Return the number of the last attempt; 0 if there is none yet."""
    return int(status.get("attempt", 0))


def failed_attempts(status: Status) -> int:
    """Return the number of attempts that count towards `retry.maxAttempts`."""
    return int(status.get("failedAttempts", 0))


def add_attempt(status: Status, names: Names) -> Status:
    """Return the status with a new running attempt. `record_ray_job` sets its start time."""
    attempt: Attempt = {"number": names.attempt, "rayJobName": names.ray_job}
    attempts = [*status.get("attempts", []), attempt][-MAX_ATTEMPTS:]
    kept = without(status, "nextAttemptTime", "rayClusterName")
    kept = with_internal(kept, **dict.fromkeys(_OF_ATTEMPT))
    return {**kept, "attempt": names.attempt, "attempts": attempts, "rayJobName": names.ray_job}


def remove_attempt(status: Status) -> Status:
    """Return the status without the last attempt, whose objects could not be created."""
    *before, last = status["attempts"]
    kept = without(status, "attempt", "attempts", "rayJobName")
    if not before:
        return kept
    name = before[-1]["rayJobName"]
    return {**kept, "attempt": last["number"] - 1, "attempts": before, "rayJobName": name}


def record_ray_job(status: Status, ray_job: RayJobView, raised: Collection[str] = ()) -> Status:
    """Return the status with the start time, generation, choice and memory of the attempt.

    Memory is only recorded for the groups in `raised`. They have more than the spec requests,
    because they ran out of memory in an earlier attempt.
    """
    start, generation, choice = ray_job.created_at, ray_job.generation, ray_job.choice
    return update_last(
        status,
        startTime=start,
        generation=generation,
        choice=choice and choice.model_dump(by_alias=True, exclude_none=True, mode="json"),
        memory={group: size for group, size in ray_job.memory if group in raised} or None,
    )


def update_last(status: Status, **changes: Any) -> Status:
    """Return the status with changed fields of the last attempt. None removes a field."""
    *before, last = status["attempts"]
    changed = {name: value for name, value in {**last, **changes}.items() if value is not None}
    return {**status, "attempts": [*before, changed]}


def end_attempt(
    status: Status, outcome: str, now: str, cause: Cause | None = None, message: str = ""
) -> Status:
    """Return the status in which the running attempt has ended. Also increases `failedAttempts`, if
    the outcome is Failed and the cause is not NoCapacity."""
    if not is_running(status):
        return status
    ended = update_last(
        without(status, "devices"),
        outcome=outcome,
        completionTime=now,
        cause=cause and cause.value,
        message=in_one_line(message)[:MAX_ATTEMPT_MESSAGE] or None,
    )
    count = failed_attempts(status) + (outcome == "Failed" and cause != Cause.NO_CAPACITY)
    return {**ended, "failedAttempts": count}


def newly_ended(before: Status, after: Status) -> list[Attempt]:
    """Return the attempts that ended between two statuses of a job."""
    known = [one["number"] for one in before.get("attempts", []) if "outcome" in one]
    ended = [one for one in after.get("attempts", []) if "outcome" in one]
    new = [one for one in ended if one["number"] >= attempt_number(before)]
    return [one for one in new if one["number"] not in known]
