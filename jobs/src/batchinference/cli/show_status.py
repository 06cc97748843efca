"""The command `status` without `--watch`, for an output, or for a job on a cluster."""

import tempfile
import webbrowser
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from batchinference.api.jobs_on_cluster import read_job
from batchinference.api.observation import observed_job, observed_output
from batchinference.api.output_status import OutputStatus, history_of, report_page, status_of
from batchinference.api.targets import Target
from batchinference.cli import exits
from batchinference.cli.exit_on_error import exit_on_cluster_error, read_output
from batchinference.cli.printing import Format, as_data, echo, print_data, print_table
from batchinference.rendering.names import dump
from batchinference.spec.history import KEPT_RUNS, table_of
from batchinference.spec.report import Report

if TYPE_CHECKING:
    from batchinference.pipeline.storage.location import Location


def show_status(target: Target, form: Format) -> int:
    """Print the status of a job on a cluster, or of an output. Return the exit code."""
    if target.is_job:
        with exit_on_cluster_error("status"):
            job, workers = read_job(target.cluster(), target.text)
        if form is Format.TEXT:
            print_table(observed_job(job, workers).lines)
        else:
            print_data(job.raw, form)
        return exits.SUCCESS
    outputs: list[OutputStatus] = read_output("status", target, status_of)
    if form is not Format.TEXT:
        first, *others = map(_data_of, outputs)
        runs = read_output("status", target, partial(history_of, limit=KEPT_RUNS))
        print_data([first | {"history": list(map(dump, runs))}, *others], form)
        return exits.SUCCESS
    for each in outputs:
        if each is not outputs[0]:
            echo("")
        print_table(observed_output(each.output, [each]).lines)
        if each.report is not None and each.state != "running":
            echo("\nlast run")
            print_table(_of_last_run(each.report))
    if rows := table_of(read_output("status", target, history_of)):
        echo("\nruns")
        print_table(rows)
    return exits.SUCCESS


def _of_last_run(report: Report) -> list[tuple[str, str]]:
    """Return the summary of a run, without the lines that the status of the output also has."""
    from batchinference.api.display import summary_of

    shown: dict[str, Any] = {"warnings": [], "message": None if report.reason else report.message}
    lines = summary_of(report.model_copy(update=shown), resumes=True)
    return [line for line in lines if line[0] not in ("job", "output")]


def open_report(target: Target) -> None:
    """Open the HTML report of the last run of an output in the browser, and print its address."""
    page: Location | None = read_output("status", target, report_page)
    if page is None:
        echo("status: --open: the output has no report yet", err=True)
        raise typer.Exit(exits.BAD_INPUT)
    echo(page.uri)
    if page.local:
        webbrowser.open(Path(page.path).absolute().as_uri())
        return
    with tempfile.NamedTemporaryFile(suffix=".html", delete=False) as copy:
        copy.write(page.read())
    webbrowser.open(Path(copy.name).as_uri())


def _data_of(status: OutputStatus) -> dict[str, Any]:
    data, progress, counts = as_data(replace(status, report=None)), status.progress, status.counts
    del data["progress"], data["counts"]
    data["warnings"] = [one.model_dump(by_alias=True) for one in status.warnings]
    data["report"] = status.report and dump(status.report)
    rows = {"rows": progress.rows, "total": progress.total, "percent": progress.percent}
    counted = counts.model_dump(by_alias=True, exclude_none=True, exclude={"read", "warned"})
    return data | rows | counted
