"""The commands `errors`, `logs` and `report`."""

from __future__ import annotations

from functools import partial
from typing import Any

from batchinference.api.driver_log import running_log
from batchinference.api.outputs import error_groups, last_log, logs_of, report_of, stored_jobs
from batchinference.api.targets import Target
from batchinference.cli.printing import Format, echo, print_data, print_table
from batchinference.cli.targets import exit_on_cluster_error, read_output
from batchinference.cli.verbosity import note
from batchinference.pipeline.output.error_groups import ErrorGroup
from batchinference.spec.report import Report
from batchinference.text import in_one_line


def show_errors(target: Target, form: Format) -> None:
    """Print the failed rows of an output by cause, with an example of each."""
    groups: list[ErrorGroup] = read_output("errors", target, error_groups)
    if form is not Format.TEXT:
        print_data([_data_of(group) for group in groups], form)
        return
    if not groups:
        echo("no failed rows")
        return
    rows = sum(group.rows for group in groups)
    echo(f"{rows} failed row(s), {len(groups)} cause(s)\n")
    for group in groups:
        _show_group(group)
    note("`retry-errors FILE` runs only these rows again.")


def _data_of(group: ErrorGroup) -> dict[str, Any]:
    named = {"step": group.step, "cause": group.cause, "rows": group.rows}
    return {**named, "example": group.examples[0]}


def _show_group(group: ErrorGroup) -> None:
    example = group.examples[0]
    echo(f"{group.rows} row(s), step '{group.step}': {in_one_line(group.cause)}")
    echo(f"  for example row {example['row']} of {in_one_line(str(example['path']))}:")
    echo(f"  {in_one_line(str(example['error']))}")
    if example["values"]:
        echo(f"  values: {in_one_line(example['values'])}")
    echo("")


def show_logs(target: Target, *, every: bool, previous: bool) -> None:
    """Print the log of the running or the last driver, or the addresses of every log."""
    if every:
        found = read_output("logs", target, lambda output: logs_of(stored_jobs(output)[0]))
        for log in found:
            echo(log.uri)
        return
    running = None if previous or not target.is_job else _running_log(target)
    if running is not None:
        echo(running)
        return
    content: str = read_output("logs", target, last_log)
    echo(content.rstrip())


def _running_log(target: Target) -> str | None:
    with exit_on_cluster_error("logs"):
        return running_log(target.cluster(), target.text)


def show_report(target: Target, form: Format) -> None:
    """Print the report of the last run of an output."""
    report: Report = read_output("report", target, partial(report_of))
    if form is not Format.TEXT:
        print_data(report.model_dump(mode="json", by_alias=True, exclude_none=True), form)
        return
    from batchinference.api.display import summary_of

    print_table(summary_of(report, resumes=True))
