"""Computes the finished rows of an attempt and of its job from the driver's reports."""

from __future__ import annotations

from batchinference.spec.report import Report
from batchinference_operator.status.attempts import Attempt, last_attempt, update_last
from batchinference_operator.status.job_status import Status, with_internal


def record_rows(status: Status, report: Report | None, now: str, *, late: bool) -> Status:
    """Return the status with the rows of a report.

    `late` is whether the report may already include rows of this attempt although it is the first,
    for instance because the operator was down. The final report always includes them.
    """
    if report is None or report.progress is None:
        return status
    return _update_rows(status, report.progress.rows, now, ended=report.state.ended or late)


def _update_rows(status: Status, rows: int, now: str, *, ended: bool) -> Status:
    """Return the status with the rows that the attempt has finished.

    `rows` is the driver's count for the whole job. `ended` is whether the count includes rows of
    this attempt. A job stalls if the rows of the attempt do not grow. After a restart of the
    driver, they may be fewer.
    """
    last = last_attempt(status)
    if last is None:
        return status
    before = last.get("rowsBefore")
    if before is None:
        before = _rows_before(status, last, rows, ended=ended)
        status = status if last["number"] == 1 else update_last(status, {"rowsBefore": before})
    own, known = max(0, rows - before), last.get("rows", 0)
    if own == known:
        return status
    status = update_last(status, {"rows": own})
    return with_internal(status, progressTime=now) if own > known else status


def _rows_before(status: Status, last: Attempt, rows: int, *, ended: bool) -> int:
    """Return the rows that were finished before an attempt.

    A driver that resumes includes them in its first report. A driver that starts over reports fewer
    rows than the status has. If `ended`, the first report includes rows of this attempt, so the
    rows in the status are used.
    """
    known = int(status.get("progress", {}).get("rows", 0))
    if last["number"] == 1 or rows < known:
        return 0
    return known if ended else rows


def without_decrease(status: Status, report: Report | None) -> Report | None:
    """Return the report, without progress and counts if it has fewer rows than the status.

    A driver that starts over counts from 0. Only its final report may decrease the progress.
    """
    if report is None or report.state.ended:
        return report
    rows = 0 if report.progress is None else report.progress.rows
    if rows >= status.get("progress", {}).get("rows", 0):
        return report
    return report.model_copy(update={"progress": None, "counts": None})


def own_progress(status: Status, report: Report | None) -> Report | None:
    """Return the report with only the rows of the running attempt."""
    if report is None or report.progress is None:
        return report
    own = (last_attempt(status) or {}).get("rows", 0)
    progress = report.progress.model_copy(update={"rows": own})
    return report.model_copy(update={"progress": progress})
