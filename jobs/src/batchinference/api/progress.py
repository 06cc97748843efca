"""Reads the progress of an output or of a job on a cluster, in one form for both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from batchinference.api.jobs_on_cluster import JobStatus
from batchinference.api.outputs import OutputStatus
from batchinference.api.workers import Workers
from batchinference.spec.progress import History, Progress

Facts = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Observation:
    """A job at one moment. `failed` says how an ended job has ended, and `facts` are further names
    and values."""

    state: str
    progress: Progress
    failed_rows: int
    ended: bool
    failed: bool = False
    stage: str = ""
    message: str = ""
    workers: Sequence[Workers] = ()
    output: str = ""
    facts: Facts = ()


def observed_job(job: JobStatus, workers: Sequence[Workers] = ()) -> Observation:
    """Return what is known of a job on a cluster."""
    facts = [("Namespace", job.namespace), ("Output", job.output)]
    named = (("Attempt", job.attempt), ("GPUs", job.gpus), ("Cost", job.cost))
    facts += [(name, str(value)) for name, value in named if value]
    return Observation(
        job.phase, job.progress, job.failed, job.ended, job.phase == "Failed",
        job.stage, job.message, workers, job.output, facts,
    )  # fmt: skip


def observed_output(output: str, found: Sequence[OutputStatus]) -> Observation:
    """Return what is known of an output: the sum over all jobs that have written to it."""
    states = {each.state for each in found}
    running = "running" in states
    facts = [("Output", output)]
    for each in found:
        facts += [("Written by", each.job), ("Attempt", str(each.attempt))]
        if each.heartbeat_age is not None:
            facts.append(("Last heartbeat", f"{each.heartbeat_age:.0f} s ago"))
    return Observation(
        "running" if running else "unfinished" if "unfinished" in states else "complete",
        Progress.sum(each.progress for each in found),
        sum(each.counts.failed for each in found),
        ended=not running,
        failed="unfinished" in states,
        message=next((each.last_error for each in found if each.last_error), ""),
        output=output,
        facts=facts,
    )


@dataclass
class SpeedMeter:
    """Measures the speed of a job while it is watched, if its driver does not report it."""

    history: History = field(default_factory=lambda: History(time.monotonic()))

    def measured(self, seen: Observation) -> Observation:
        """Return what was seen just now, with its speed. Fewer rows than before begin a new
        history."""
        rows, points, now = seen.progress.rows, self.history.points, time.monotonic()
        if points and rows < points[-1][1]:
            self.history = History(now)
        self.history.add(rows, now)
        if seen.ended or seen.progress.rows_per_second is not None:
            return seen
        return replace(seen, progress=seen.progress.at_rate(self.history.rate))
