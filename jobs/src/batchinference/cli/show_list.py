"""The command `list`."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import typer

from batchinference.api.jobs_on_cluster import JobStatus
from batchinference.api.observation import Observation, observed_job, observed_output
from batchinference.api.output_status import outputs_below, status_of
from batchinference.api.targets import Target
from batchinference.cli import exits
from batchinference.cli.exit_on_error import exit_on_cluster_error, read_output
from batchinference.cli.printing import Format, echo, print_data, print_table
from batchinference.text import in_one_line


def show_list(target: Target, form: Format) -> int:
    """Print the outputs below a directory, or the jobs of a namespace, and their progress. Return
    the exit code."""
    on_cluster = target.is_on_cluster
    seen, is_complete = (list(_jobs(target)), True) if on_cluster else _outputs(target)
    if form is not Format.TEXT:
        print_data([_data_of(each) for each in seen], form)
    elif seen:
        header = ("job" if on_cluster else "output", "state", "rows", "failed rows", "speed")
        print_table([header, *map(_row, seen)])
    elif is_complete:
        kind = "jobs" if on_cluster else "outputs"
        echo(f"there are no {kind} {'in the namespace' if on_cluster else f'below {target.text}'}")
    return exits.SUCCESS if is_complete else exits.BAD_INPUT


def _jobs(target: Target) -> Iterator[Observation]:
    with exit_on_cluster_error("list"):
        jobs = [JobStatus.of(job) for job in target.cluster().list_jobs()]
    return map(observed_job, sorted(jobs, key=lambda job: (job.ended, job.name)))


def _outputs(target: Target) -> tuple[list[Observation], bool]:
    """Return the readable outputs below a directory, and whether all outputs are readable. Prints
    the problems of unreadable outputs."""
    # a name without a slash is a directory here, not the name of a job
    directory = Target(f"./{target.text}") if target.is_job else target
    outputs = read_output("list", directory, outputs_below)
    seen: list[Observation] = []
    for output in outputs:
        with suppress(typer.Exit):
            status = read_output("list", Target(output), status_of)
            seen.append(observed_output(output, status))
    return seen, len(seen) == len(outputs)


def _row(seen: Observation) -> tuple[str, ...]:
    rows, speed = ", ".join(seen.progress.figures), ", ".join(seen.pace)
    return in_one_line(seen.title[1]), seen.activity, rows, str(seen.failed_rows or ""), speed


def _data_of(seen: Observation) -> dict[str, Any]:
    name, value = seen.title
    return {
        name: value,
        "state": seen.state,
        "rows": seen.progress.rows,
        "total": seen.progress.total,
        "failed": seen.failed_rows,
        "output": seen.output,
    }
