"""Reads and updates the attempts in a status: the running attempt and the ended ones."""

from collections.abc import Collection
from itertools import takewhile
from typing import Any

from batchinference.rendering import Names
from batchinference.spec.causes import Cause
from batchinference.spec.report import Report
from batchinference.spec.status import MAX_FAULTY_NODES
from batchinference.text import in_one_line
from batchinference_operator.status.job_status import Status, internal, with_internal, without
from batchinference_operator.status.ray_job import RayJobView

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

    Memory is only recorded for `raised`: the groups that have more than the spec requests, because
    they ran out of memory in an earlier attempt.
    """
    start, generation, choice = ray_job.created_at, ray_job.generation, ray_job.choice
    return update_last(
        status,
        startTime=start,
        generation=generation,
        choice=choice and choice.model_dump(by_alias=True, exclude_none=True, mode="json"),
        memory={group: size for group, size in ray_job.memory if group in raised} or None,
    )


def mark_queued(status: Status, now: str) -> Status:
    """Return the status in which Kueue queues the running attempt.

    The fields about the driver and the progress are removed, because the attempt starts over when
    it is admitted. The rows are kept, because a driver that resumes counts them in its reports.
    """
    last = last_attempt(status)
    if "queuedTime" in last and "progressTime" not in internal(status):
        return status
    status = with_internal(status, progressTime=None, driverHead=None, gapSince=None)
    queued = last.get("queuedTime", now)
    return update_last(status, queuedTime=queued, admittedTime=None, waiting=None)


def mark_admitted(status: Status, now: str) -> Status:
    """Return the status in which Kueue has admitted the running attempt, if it was queued."""
    if "queuedTime" not in last_attempt(status):
        return status
    return update_last(status, queuedTime=None, admittedTime=now)


def update_last(status: Status, **changes: Any) -> Status:
    """Return the status with changed fields of the last attempt. None removes a field."""
    *before, last = status["attempts"]
    changed = {name: value for name, value in {**last, **changes}.items() if value is not None}
    return {**status, "attempts": [*before, changed]}


def record_faulty_nodes(status: Status, report: Report | None) -> Status:
    """Return the status with the nodes on which a device failed in the running attempt. Nodes in
    the status are kept, because a restarted driver reports only its own nodes."""
    if report is None or not report.faulty_nodes:
        return status
    known = last_attempt(status).get("faultyNodes", [])
    nodes = list(dict.fromkeys([*known, *report.faulty_nodes]))  # each once, oldest first
    return update_last(status, faultyNodes=nodes[:MAX_FAULTY_NODES])


def faulty_nodes(status: Status) -> list[str]:
    """Return the nodes on which a device failed in an attempt since the last suspension."""
    attempts = reversed(status.get("attempts", []))
    recent = takewhile(lambda one: one.get("outcome") != "Suspended", attempts)
    return sorted({node for one in recent for node in one.get("faultyNodes", [])})


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


def next_choice(status: Status) -> int:
    """Return the number of the hardware choice of the attempt that runs or starts next. After an
    attempt that ended with NoCapacity, it is the following choice; otherwise the first."""
    ended = [one for one in status.get("attempts", []) if "outcome" in one]
    if not ended or ended[-1].get("cause") != Cause.NO_CAPACITY:
        return 1
    return int(ended[-1].get("choice", {}).get("number", 0)) + 1


def newly_ended(before: Status, after: Status) -> list[Attempt]:
    """Return the attempts that ended between two statuses of a job."""
    known = [one["number"] for one in before.get("attempts", []) if "outcome" in one]
    ended = [one for one in after.get("attempts", []) if "outcome" in one]
    new = [one for one in ended if one["number"] >= attempt_number(before)]
    return [one for one in new if one["number"] not in known]


def record_rows(
    status: Status, report: Report | None, now: str, *, may_include_rows: bool
) -> Status:
    """Return the status with the number of rows that the running attempt has finished.

    `may_include_rows` is whether the first report that was read may already include rows of the
    running attempt, for instance because the operator was down. A final report always does.
    `progressTime`, from which `deadlines.stall` is measured, changes only if the number increases.
    The number may decrease after a restart of the driver.
    """
    last = last_attempt(status)
    if report is None or report.progress is None or not last:
        return status
    rows, before = report.progress.rows, last.get("rowsBefore")
    if before is None:
        includes_own = report.state.ended or may_include_rows
        before = _rows_before(status, last, rows, includes_own=includes_own)
        status = status if last["number"] == 1 else update_last(status, rowsBefore=before)
    own, known = max(0, rows - before), last.get("rows", 0)
    if own == known:
        return status
    status = update_last(status, rows=own)
    return with_internal(status, progressTime=now) if own > known else status


def _rows_before(status: Status, last: Attempt, rows: int, *, includes_own: bool) -> int:
    """Return the number of rows that earlier attempts have finished.

    The first report of a driver that resumes has this number. If it `includes_own` rows, the result
    is the number in the status. A driver that starts over reports fewer rows than the status.
    """
    known = int(status.get("progress", {}).get("rows", 0))
    if last["number"] == 1 or rows < known:
        return 0
    return known if includes_own else rows


def without_decrease(status: Status, report: Report | None) -> Report | None:
    """Return the report, without progress and counts if these are lower than in the status. A
    driver that starts over counts from 0. Only its final report may lower the progress."""
    if report is None or report.state.ended:
        return report
    rows = 0 if report.progress is None else report.progress.rows
    if rows >= status.get("progress", {}).get("rows", 0):
        return report
    return report.model_copy(update={"progress": None, "counts": None})


def own_progress(status: Status, report: Report | None) -> Report | None:
    """Return the report with a progress that counts only rows of the running attempt."""
    if report is None or report.progress is None:
        return report
    # rows from before an eviction by Kueue do not count
    own = last_attempt(status).get("rows", 0) if "progressTime" in internal(status) else 0
    progress = report.progress.model_copy(update={"rows": own})
    return report.model_copy(update={"progress": progress})
