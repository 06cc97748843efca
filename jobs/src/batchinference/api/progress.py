"""Reads the progress of an output or of a job on a cluster, in one form for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batchinference.api.jobs_on_cluster import JobStatus
from batchinference.api.outputs import OutputStatus
from batchinference.api.workers import Workers


@dataclass(frozen=True)
class JobProgress:
    """The progress of a job at one moment. `failed` says how an ended job has ended."""

    state: str
    rows: int
    total: int | None
    errors: int
    ended: bool
    failed: bool = False
    rate: float | None = None
    stage: str = ""
    message: str = ""
    workers: Sequence[Workers] = ()

    @property
    def percent(self) -> int | None:
        """The finished rows in percent; None if the total is unknown."""
        return min(100, 100 * self.rows // self.total) if self.total else None

    def remaining_seconds(self, rate: float | None) -> float | None:
        """Return the seconds until the job ends at `rate` rows per second; None if unknown."""
        if self.ended or not self.total or not rate:
            return None
        return max(0, self.total - self.rows) / rate


def progress_of_job(job: JobStatus, workers: Sequence[Workers] = ()) -> JobProgress:
    """Return the progress of a job on a cluster."""
    return JobProgress(
        job.phase, job.rows, job.total, job.failed, job.ended, job.phase == "Failed", job.rate,
        job.stage, job.message, workers,
    )  # fmt: skip


def progress_of_output(found: Sequence[OutputStatus]) -> JobProgress:
    """Return the progress of all jobs that have written to an output, added up."""
    states = {each.state for each in found}
    totals = [each.total for each in found]
    running = "running" in states
    return JobProgress(
        "running" if running else "unfinished" if "unfinished" in states else "complete",
        sum(each.rows for each in found),
        None if None in totals else sum(total or 0 for total in totals),
        sum(each.failed for each in found),
        ended=not running,
        failed="unfinished" in states,
        message=next((each.last_error for each in found if each.last_error), ""),
    )
