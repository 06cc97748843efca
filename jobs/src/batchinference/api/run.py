"""The function `run` of the Python API, which runs a job on this machine and returns its result."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from batchinference.api.job import Job, check_is_job
from batchinference.api.job_for_run import job_of_run
from batchinference.api.result_frames import Rows
from batchinference.pipeline.errors import BadInput
from batchinference.spec import BatchInference
from batchinference.spec.report import JobState, Report

if TYPE_CHECKING:
    import pyarrow as pa
    import ray.data

    from batchinference.api.display import Display
    from batchinference.pipeline.execution.stop_signals import StopSignal


class JobFailed(Exception):
    """A job has failed. `report` has the reason and the counts of its rows."""

    def __init__(self, report: Report) -> None:
        from batchinference.api.notebook_display import with_python_arguments

        super().__init__(with_python_arguments(f"{report.name}: {report.reason}: {report.message}"))
        self.report = report

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: no traceback, because the cause is in the job."""
        return [f"JobFailed: {self}"]


@dataclass(frozen=True)
class Result(Rows):
    """The result of a successful job."""

    job: BatchInference
    report: Report
    cell: int | None = field(default=None, repr=False, compare=False)
    """The number of the notebook cell that has run the job. The cell already shows the table."""

    def __repr__(self) -> str:
        return f"Result({self.report!r})"

    def _repr_html_(self) -> str:
        from batchinference.api.notebook_display import html_of

        return html_of(self.report)

    def _ipython_display_(self) -> None:
        """Show the table with the result if this cell does not show it already."""
        from batchinference.api.notebook_display import cell_number, show

        if self.cell is None or self.cell != cell_number():
            show(self.report)

    @property
    def output(self) -> str:
        """The path or address of the output."""
        return self.report.output

    def to_arrow(self) -> pa.Table:
        """Return all rows of the output as an Arrow table. A table without rows still has the
        columns of the output, if they are known."""
        from batchinference.pipeline.output.output_rows import all_rows, table_without_rows

        table = all_rows(self.job.spec.write)
        empty = None if table.num_rows else table_without_rows(self.job.spec)
        return empty if empty is not None and empty.num_columns else table

    def to_ray(self) -> ray.data.Dataset:
        """Return the output as a Ray Dataset. Starts Ray if it is not running."""
        import ray
        import ray.data

        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        return ray.data.from_arrow(self.to_arrow())

    def errors(self) -> pa.Table:
        """Return the error records of the failed rows, with path, row, step and error."""
        import pyarrow as pa

        from batchinference.api.output_status import error_tables
        from batchinference.pipeline.output.error_records import ERRORS_SCHEMA

        tables = list(error_tables(self.output))
        return pa.concat_tables(tables) if tables else ERRORS_SCHEMA.empty_table()


def run(
    job: Job,
    data: Any = None,
    *,
    restart: bool = False,
    retry_errors: bool = False,
    verbose: bool = False,
) -> Result:
    """Run a job on this machine, on a new Ray instance, and return its result.

    `data` is a DataFrame or an Arrow table that replaces the input of the job. `restart` starts
    over and replaces what earlier runs of this job have written. `retry_errors` runs only the
    failed rows again. `verbose` shows the messages of Ray.

    Raises JobFailed if the job fails. Raises BadInput if the job does not support `restart` or
    `retry_errors`, or if both are set. Raises SpecError if `data` cannot be stored unchanged."""
    from batchinference.api.notebook_display import cell_number
    from batchinference.api.runner import Runner

    check_is_job(job)
    if restart and retry_errors:
        raise BadInput(
            "retry_errors: a run that starts over has no failed rows to run again (True). Remove "
            "restart or retry_errors"
        )
    job = job if data is None else job.with_data(data)
    resource, own_only = job_of_run(job.absolute, restart=restart, retry_errors=retry_errors)
    with _display(verbose=verbose) as display, job.prepared(), _stop_signal(display.say) as stop:
        shown = display.say, display.show
        runner = Runner(resource, job.directory, *shown, stop, quiet=not verbose, own_only=own_only)
        report = runner.run_here()
    if report.state != JobState.SUCCEEDED:
        raise JobFailed(report)
    return Result(resource, report, cell_number())


def _display(*, verbose: bool) -> Display:
    from batchinference.api.display import Display
    from batchinference.api.notebook_display import NotebookDisplay, cell_number

    return (Display if cell_number() is None else NotebookDisplay)(verbose=verbose)


def _stop_signal(say: Callable[[str], None]) -> AbstractContextManager[StopSignal]:
    """Return a context manager with a StopSignal. In the main thread, Ctrl-C sets this signal."""
    from batchinference.pipeline.execution.stop_signals import StopSignal, stop_on_signals

    is_main = threading.current_thread() is threading.main_thread()
    return stop_on_signals(say) if is_main else nullcontext(StopSignal(say))
