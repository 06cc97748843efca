"""The command `watch`: the progress of an output or of a job on a cluster until it ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from batchinference.api.outputs import OutputStatus, status_of
from batchinference.api.progress import JobProgress, progress_of_job, progress_of_output
from batchinference.api.targets import Target
from batchinference.api.workers import read_job
from batchinference.cli import exits
from batchinference.cli.printing import Format, as_data, echo, print_record
from batchinference.cli.show_status import rows_text
from batchinference.cli.targets import exit_on_cluster_error, read_output
from batchinference.cli.verbosity import is_quiet
from batchinference.text import counted, in_one_line

if TYPE_CHECKING:
    from rich.table import Table

View = Callable[[JobProgress, float], None]
"""Shows the progress and the rows per second of a job."""


def watch_status(
    target: Target,
    interval: float,
    sleep: Callable[[float], Any] = time.sleep,
    *,
    form: Format = Format.TEXT,
) -> int:
    """Show the progress until the job has ended, and return the exit code."""
    began: JobProgress | None = None
    since = time.monotonic()
    table = form is Format.TEXT and sys.stdout.isatty()
    with _table_view(target.text) if table else _line_view(form) as show:
        while True:
            progress = _read_progress(target)
            began = began or progress
            rate = progress.rate
            if rate is None:
                rate = (progress.rows - began.rows) / max(time.monotonic() - since, 1e-9)
            if progress.ended or not is_quiet():
                show(progress, rate)
            if progress.ended:
                return exits.JOB_FAILED if progress.failed else exits.SUCCESS
            sleep(interval)


def _read_progress(target: Target) -> JobProgress:
    if target.is_job:
        with exit_on_cluster_error("watch"):
            return progress_of_job(*read_job(target.cluster(), target.text))
    found: list[OutputStatus] = read_output("watch", target, status_of)
    return progress_of_output(found)


@contextmanager
def _line_view(form: Format) -> Iterator[View]:
    """Yield a function that prints a line or a record for each change."""
    shown: object = None

    def show(progress: JobProgress, rate: float) -> None:
        nonlocal shown
        line = line_of(progress, rate)
        record = line if form is Format.TEXT else record_of(progress, rate)
        if record == shown:
            return
        shown = record
        echo(line) if form is Format.TEXT else print_record(record, form)

    yield show


@contextmanager
def _table_view(name: str) -> Iterator[View]:
    """Yield a function that updates a table on the terminal."""
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(), auto_refresh=False) as live:
        yield lambda progress, rate: live.update(_table(name, progress, rate), refresh=True)


def _table(name: str, progress: JobProgress, rate: float) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for field, value in [("job", name), *fields_of(progress, rate)]:
        table.add_row(field, Text(in_one_line(value)))
    return table


def fields_of(progress: JobProgress, rate: float) -> list[tuple[str, str]]:
    """Return the names and values of the table. Values that are unknown are left out."""
    remaining = progress.remaining_seconds(rate)
    fields = [
        ("state", progress.state),
        ("rows", rows_text(progress.rows, progress.total, progress.percent)),
        ("speed", f"{rate:.1f} rows/s" if rate > 0 else ""),
        ("ETA", "" if remaining is None else str(timedelta(seconds=round(remaining)))),
        ("stages", progress.stage),
        ("workers", ", ".join(map(str, progress.workers))),
        ("errors", f"{progress.errors} failed row(s)"),
        ("message", progress.message),
    ]
    return [(name, value) for name, value in fields if value]


def line_of(progress: JobProgress, rate: float) -> str:
    """Return the progress as one line."""
    parts = [progress.state, counted(progress.rows, "row")]
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
    if progress.workers:
        parts.append("workers " + " + ".join(map(str, progress.workers)))
    return ", ".join([*parts, progress.message] if progress.message else parts)


def record_of(progress: JobProgress, rate: float) -> dict[str, Any]:
    """Return the progress as data. Values that are unknown are null."""
    remaining = progress.remaining_seconds(rate)
    return as_data(progress) | {
        "percent": progress.percent,
        "rate": round(rate, 1),
        "remainingSeconds": None if remaining is None else round(remaining),
    }
