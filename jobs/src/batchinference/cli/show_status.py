"""The commands `status` and `watch`, for an output or for a job on a cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from batchinference.api.jobs_on_cluster import JobStatus
from batchinference.api.outputs import OutputStatus, status_of
from batchinference.api.progress import JobProgress, progress_of_job, progress_of_output
from batchinference.api.targets import Target
from batchinference.cli import exits
from batchinference.cli.printing import Format, echo, print_data, print_table
from batchinference.cli.targets import exit_on_cluster_error, read_output


def show_status(target: Target, form: Format) -> None:
    if target.is_job:
        with exit_on_cluster_error("status"):
            job = JobStatus.of(target.cluster().get(target.text))
        _show_job(job, form)
        return
    found: list[OutputStatus] = read_output("status", target, status_of)
    if form is not Format.TEXT:
        print_data([asdict(each) | {"percent": each.percent} for each in found], form)
        return
    for each in found:
        print_table(_lines_of_output(each))


def _show_job(job: JobStatus, form: Format) -> None:
    if form is not Format.TEXT:
        print_data(job.raw, form)
        return
    lines = [("job", f"{job.namespace}/{job.name}"), ("phase", job.phase)]
    lines += [("", job.message)] if job.message else []
    lines += [("rows", _rows(job.rows, job.total, job.percent))]
    lines += [("failed rows", str(job.failed))] if job.failed else []
    lines += [("speed", f"{job.rate:g} rows/s, ETA {job.eta}")] if job.rate else []
    lines += [("stage", job.stage)] if job.stage else []
    lines += [("attempt", str(job.attempt))] if job.attempt else []
    lines += [("GPUs", str(job.gpus))] if job.gpus else []
    lines += [("cost", job.cost)] if job.cost else []
    lines += [("output", job.output)]
    print_table(lines)


def _lines_of_output(status: OutputStatus) -> list[tuple[str, str]]:
    lines = [
        ("output", status.output),
        ("state", status.state),
        ("rows", _rows(status.rows, status.total, status.percent)),
        ("", f"{status.written} written, {status.failed} failed, {status.filtered} filtered"),
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


def _rows(rows: int, total: int | None, percent: int | None) -> str:
    of = f" of {total}" if total is not None else ""
    return f"{rows}{of}" + (f" ({percent} %)" if percent is not None else "")


def watch_status(
    target: Target, interval: float, sleep: Callable[[float], Any] = time.sleep
) -> int:
    """Show the progress until the job has ended, and return the exit code."""
    began: JobProgress | None = None
    since = time.monotonic()
    shown = ""
    while True:
        progress = _read_progress(target)
        began = began or progress
        rate = progress.rate
        if rate is None:
            rate = (progress.rows - began.rows) / max(time.monotonic() - since, 1e-9)
        line = _line(progress, rate)
        if line != shown:
            _show(line, ended=progress.ended)
            shown = line
        if progress.ended:
            return exits.JOB_FAILED if progress.failed else exits.SUCCESS
        sleep(interval)


def _read_progress(target: Target) -> JobProgress:
    if target.is_job:
        with exit_on_cluster_error("watch"):
            return progress_of_job(JobStatus.of(target.cluster().get(target.text)))
    found: list[OutputStatus] = read_output("watch", target, status_of)
    return progress_of_output(found)


def _line(progress: JobProgress, rate: float) -> str:
    parts = [progress.state, f"{progress.rows} rows"]
    if progress.percent is not None:
        parts.append(f"{progress.percent} %")
    if rate > 0 and not progress.ended:
        parts.append(f"{rate:.1f} rows/s")
        if (remaining := progress.remaining_seconds(rate)) is not None:
            parts.append(f"ETA {remaining:.0f} s")
    if progress.errors:
        parts.append(f"{progress.errors} failed")
    if progress.stage:
        parts.append(f"in {progress.stage.replace(', ', ' + ')}")
    return ", ".join([*parts, progress.message] if progress.message else parts)


def _show(line: str, *, ended: bool) -> None:
    """Print a line. On a terminal, it replaces the previous one."""
    if not sys.stdout.isatty():
        echo(line)
        return
    from batchinference.text import in_one_line

    sys.stdout.write(f"\r\x1b[2K{in_one_line(line)}" + ("\n" if ended else ""))
    sys.stdout.flush()
