"""Describes the current state of an output or of a job on a cluster, in the same form."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from batchinference.api.jobs_on_cluster import JobStatus, Workers
from batchinference.api.output_status import OutputStatus
from batchinference.spec.durations import duration_text, time_of
from batchinference.spec.progress import STARTING, Counts, Progress, ProgressHistory
from batchinference.spec.status import Choice
from batchinference.spec.warnings import WarningCount
from batchinference.text import named_lines

Lines = list[tuple[str, str]]


@dataclass(frozen=True)
class Observation:
    """The state of an output or of a job on a cluster at one moment."""

    title: tuple[str, str]
    """`output` and its path, or `job` and its namespace and name."""
    state: str
    progress: Progress
    counts: Counts | None
    ended: bool
    failed: bool = False
    """Whether the job, or one of the jobs of an output, has ended without success."""
    stage: str = ""
    message: str = ""
    workers: Sequence[Workers] = ()
    warnings: Sequence[WarningCount] = ()
    output: str = ""
    facts: Sequence[tuple[str, str]] = ()
    """Further names and values to show."""
    name: str = ""
    took: str = ""
    """How long the job, or the last run of an output, took; empty until its end."""
    ended_at: str = ""
    starting: bool = False
    """Whether a run is in progress and has not finished a row yet."""

    @property
    def activity(self) -> str:
        """The state to show. This is STARTING until a run has finished a row, and then `state`."""
        known = self.progress.rows_per_second is not None
        return STARTING if self.starting and not known else self.state

    @property
    def failed_rows(self) -> int:
        """The number of failed rows; 0 if no rows were counted yet."""
        return self.counts.failed if self.counts else 0

    @property
    def pace(self) -> list[str]:
        """The speed and the remaining time, if they are known; empty for a job that has ended."""
        return [] if self.ended else self.progress.pace

    @property
    def lines(self) -> Lines:
        """The names and values to show. Unknown values are left out."""
        lines = [
            self.title,
            ("state", self.activity),
            ("", self.message),
            ("rows", self.progress.rows_text),
            ("failed rows", str(self.failed_rows or "")),
            ("tokens", self.counts.tokens_text if self.counts else ""),
            *named_lines("warnings", self.warnings),
            ("speed", ", ".join(self.pace)),
            ("stage", self.stage),
            ("workers", ", ".join(map(str, self.workers))),
            *self.facts,
        ]
        return [(name, value) for name, value in lines if value]


def observed_job(job: JobStatus, workers: Sequence[Workers] = ()) -> Observation:
    """Return the observation of a job on a cluster."""
    choices = [one["choice"] for one in job.raw.get("attempts", ())[-1:] if "choice" in one]
    choice = Choice.model_validate(choices[0], extra="ignore") if choices else None
    named = (
        ("files", job.replaced_files),
        ("attempt", job.attempt),
        ("devices", choice),
        ("device count", job.devices),
        ("cost", job.cost),
    )
    facts = [(name, str(value)) for name, value in named if value]
    times = [job.raw.get(name, "") for name in ("startTime", "completionTime")]
    start, end = (text if time_of(text) else "" for text in times)
    began, ended = time_of(start), time_of(end := end if job.ended else "")
    took = duration_text((ended - began).total_seconds()) if began and ended else ""
    return Observation(
        ("job", f"{job.namespace}/{job.name}"), job.phase, job.progress, job.counts, job.ended,
        job.phase == "Failed", job.stage, job.message, workers, job.warnings, job.output,
        [*facts, *_times(start, end, took), ("output", job.output)],
        job.name, took, end, job.phase == "Running" and job.progress.rows_per_second is None,
    )  # fmt: skip


def _times(start: str, end: str, took: str) -> Iterator[tuple[str, str]]:
    """Yield a line for the start of a job, and a line for its end, if these times are known."""
    if start:
        yield "started", start
    if end:
        yield "ended", f"{end} (after {took})" if took else end


def observed_output(output: str, jobs: Sequence[OutputStatus]) -> Observation:
    """Return the observation of an output: the sum over all jobs that have written to it."""
    states = {each.state for each in jobs}
    running = "running" in states
    last = None if running else next((each.report for each in reversed(jobs) if each.report), None)
    return Observation(
        ("output", output),
        "running" if running else "unfinished" if "unfinished" in states else "complete",
        Progress.sum(each.progress for each in jobs),
        Counts.sum(each.counts for each in jobs),
        ended=not running,
        failed="unfinished" in states,
        message=next((each.last_error for each in jobs if each.last_error), ""),
        warnings=[warning for each in jobs for warning in each.warnings],
        output=output,
        facts=[fact for each in jobs for fact in _facts(each)],
        name=last.name if last else "",
        took=duration_text(sum(last.seconds.values())) if last and last.seconds else "",
        ended_at=last.updated_at if last else "",
        starting=any(each.starting for each in jobs),
    )


def _facts(status: OutputStatus) -> Iterator[tuple[str, str]]:
    yield "written", f"{status.counts.written:,}"
    yield "filtered", f"{status.counts.filtered:,}" if status.counts.filtered else ""
    yield "files", str((status.report and status.report.replaced_files) or "")
    yield "pass", str(status.pass_number)
    yield "job", status.job
    if status.heartbeat_age is not None:
        yield "heartbeat", f"{status.heartbeat_age:.0f} s ago"
    if status.logs:
        yield "log", status.logs[-1]


@dataclass
class SpeedMeter:
    """Measures the speed of an output or job that does not report its speed."""

    history: ProgressHistory = field(default_factory=lambda: ProgressHistory(time.monotonic()))

    def with_measured_speed(self, seen: Observation) -> Observation:
        """Return the newest observation. If it has no speed and has not ended, add the measured
        speed. If the number of rows has become smaller, the measurement starts over."""
        rows, points, now = seen.progress.rows, self.history.points, time.monotonic()
        if points and rows < points[-1][1]:
            self.history = ProgressHistory(now)
        self.history.add(rows, now)
        if seen.ended or seen.progress.rows_per_second is not None:
            return seen
        return replace(seen, progress=seen.progress.at_rate(self.history.rate))
