"""Counts the rows that the running attempt has finished."""

from batchinference.spec.report import Report
from batchinference_operator.status.attempts import Attempt, last_attempt, update_last
from batchinference_operator.status.job_status import Status, internal, with_internal


def record_rows(
    status: Status, report: Report | None, now: str, *, may_include_rows: bool
) -> Status:
    """Return the status with the number of rows that the running attempt has finished.

    `may_include_rows` is whether the first report may already include rows of the running attempt,
    for instance because the operator was down. A final report always does. `progressTime`, from
    which `deadlines.stall` is measured, changes only if the number increases. The number may
    decrease after a restart of the driver.
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
