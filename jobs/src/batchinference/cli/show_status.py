"""The command `status`, for an output or for a job on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batchinference.api.display import named_lines
from batchinference.api.jobs_on_cluster import JobStatus
from batchinference.api.outputs import OutputStatus, status_of
from batchinference.api.targets import Target
from batchinference.api.workers import Workers, read_job
from batchinference.cli.printing import Format, as_data, print_data, print_table
from batchinference.cli.targets import exit_on_cluster_error, read_output
from batchinference.spec.durations import duration_text
from batchinference.spec.times import time_of


def show_status(target: Target, form: Format) -> None:
    if target.is_job:
        with exit_on_cluster_error("status"):
            job, workers = read_job(target.cluster(), target.text)
        _show_job(job, workers, form)
        return
    found: list[OutputStatus] = read_output("status", target, status_of)
    if form is not Format.TEXT:
        print_data([_data_of_output(each) for each in found], form)
        return
    for each in found:
        print_table(_lines_of_output(each))


def _show_job(job: JobStatus, workers: Sequence[Workers], form: Format) -> None:
    if form is not Format.TEXT:
        print_data(job.raw, form)
        return
    lines = [("job", f"{job.namespace}/{job.name}"), ("phase", job.phase)]
    lines += [("", job.message)] if job.message else []
    lines += [("rows", job.progress.rows_text)]
    lines += [("failed rows", str(job.failed))] if job.failed else []
    lines += named_lines("warnings", job.warnings)
    if (pace := job.progress.pace) and not job.ended:
        lines += [("speed", ", ".join(pace))]
    lines += [("stage", job.stage)] if job.stage else []
    lines += [("workers", ", ".join(map(str, workers)))] if workers else []
    lines += [("attempt", str(job.attempt))] if job.attempt else []
    lines += [("GPUs", str(job.gpus))] if job.gpus else []
    lines += [("cost", job.cost)] if job.cost else []
    lines += _times_of(job)
    lines += [("output", job.output)]
    print_table(lines)


def _times_of(job: JobStatus) -> list[tuple[str, str]]:
    """Return when a job was started and has ended, and how long it took."""
    start, end = (job.raw.get(name, "") for name in ("startTime", "completionTime"))
    began, ended = time_of(start), time_of(end) if job.ended else None
    lines = [("started", start)] if began else []
    took = f" (after {duration_text((ended - began).total_seconds())})" if began and ended else ""
    return [*lines, ("ended", f"{end}{took}")] if ended else lines


def _lines_of_output(status: OutputStatus) -> list[tuple[str, str]]:
    counts = status.counts
    lines = [
        ("output", status.output),
        ("state", status.state),
        ("rows", status.progress.rows_text),
        ("", f"{counts.written} written, {counts.failed} failed, {counts.filtered} filtered"),
        *named_lines("warnings", status.warnings),
        ("attempt", str(status.attempt)),
        ("job", status.job),
    ]
    if status.heartbeat_age is not None:
        lines.append(("heartbeat", f"{status.heartbeat_age:.0f} s ago"))
    if status.last_error:
        lines.append(("last error", status.last_error))
    if status.logs:
        lines.append(("log", status.logs[-1]))
    return lines


def _data_of_output(status: OutputStatus) -> dict[str, Any]:
    data, progress, counts = as_data(status), status.progress, status.counts
    del data["progress"], data["counts"]
    rows = {"rows": progress.rows, "total": progress.total, "percent": progress.percent}
    return data | rows | counts.model_dump(include={"written", "failed", "filtered"})
