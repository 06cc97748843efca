"""The command `status --watch`. It shows the progress of an output or job until its run ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from batchinference.api.jobs_on_cluster import read_job
from batchinference.api.observation import Observation, SpeedMeter, observed_job, observed_output
from batchinference.api.output_status import status_of
from batchinference.api.targets import Target
from batchinference.cli import exits
from batchinference.cli.exit_on_error import exit_on_cluster_error, read_output
from batchinference.cli.printing import Format, as_data, echo, print_data
from batchinference.cli.verbosity import is_quiet
from batchinference.text import in_one_line

if TYPE_CHECKING:
    from rich.table import Table

View = Callable[[Observation], None]
"""A function that shows an observation of a job or an output."""


def watch_status(
    target: Target,
    interval: float,
    sleep: Callable[[float], Any] = time.sleep,
    *,
    form: Format = Format.TEXT,
) -> int:
    """Show the progress every `interval` seconds until the job has ended. Return the exit code."""
    meter = SpeedMeter()
    table = form is Format.TEXT and sys.stdout.isatty()
    with _table_view() if table else _line_view(form) as show:
        while True:
            seen = meter.with_measured_speed(_observe(target))
            if seen.ended or not is_quiet():
                show(seen)
            if seen.ended:
                return exits.JOB_FAILED if seen.failed else exits.SUCCESS
            sleep(interval)


def _observe(target: Target) -> Observation:
    if target.is_job:
        with exit_on_cluster_error("status"):
            return observed_job(*read_job(target.cluster(), target.text))
    observed: Observation = read_output(
        "status", target, lambda output: observed_output(output, status_of(output))
    )
    return observed


@contextmanager
def _line_view(form: Format) -> Iterator[View]:
    """Yield a view that prints an observation as a line of text, or as JSON or YAML. The view
    prints only observations that differ from the last one."""
    shown: object = None

    def show(seen: Observation) -> None:
        nonlocal shown
        record = line_of(seen) if form is Format.TEXT else record_of(seen)
        if record == shown:
            return
        shown = record
        echo(record) if isinstance(record, str) else print_data(record, form, indent=None)

    yield show


@contextmanager
def _table_view() -> Iterator[View]:
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(), auto_refresh=False) as live:
        yield lambda seen: live.update(_table(seen), refresh=True)


def _table(seen: Observation) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in seen.lines:
        table.add_row(name, Text(in_one_line(value)))
    return table


def line_of(seen: Observation) -> str:
    """Return an observation of a job as one line."""
    parts = [seen.activity, *seen.progress.figures, *seen.pace]
    parts += seen.counts.troubles if seen.counts else []
    if seen.stage:
        parts.append(f"in {seen.stage.replace(', ', ' + ')}")
    if seen.workers:
        parts.append("workers " + " + ".join(map(str, seen.workers)))
    return ", ".join([*parts, seen.message] if seen.message else parts)


def record_of(seen: Observation) -> dict[str, Any]:
    """Return an observation as plain data. Unknown texts are "", unknown figures are None."""
    progress = seen.progress
    remaining = None if seen.ended else progress.remaining_seconds
    return {
        "state": seen.state,
        "rows": progress.rows,
        "total": progress.total,
        "percent": progress.percent,
        "rate": progress.rows_per_second,
        "remainingSeconds": None if remaining is None else round(remaining),
        "errors": seen.failed_rows,
        "stage": seen.stage,
        "message": seen.message,
        "workers": [as_data(group) for group in seen.workers],
        "ended": seen.ended,
        "failed": seen.failed,
    }
