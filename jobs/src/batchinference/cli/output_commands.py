"""The commands `status`, `watch`, `errors`, `logs`, `report` and `ui`."""

from __future__ import annotations

from typing import Annotated

import typer

from batchinference.cli.options import Context, Namespace, Output
from batchinference.cli.printing import Format

app = typer.Typer()
TargetArgument = Annotated[
    str,
    typer.Argument(metavar="OUTPUT|JOB", help="An output path, or the name of a cluster's job."),
]

Port = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="The port of the page; 0 takes any. Default: the first free one from 8484.",
    ),
]


@app.command()
def status(
    target: TargetArgument,
    namespace: Namespace = None,
    context: Context = None,
    output: Output = Format.TEXT,
) -> None:
    """Show the state, the rows and the last error of an output or of a job on a cluster.

    Exit codes: 0 shown, 2 there is no such output or job.
    """
    from batchinference.api.targets import Target
    from batchinference.cli.show_status import show_status

    show_status(Target(target, namespace, context), output)


@app.command()
def watch(
    target: TargetArgument,
    namespace: Namespace = None,
    context: Context = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two updates.")] = 2.0,
    output: Output = Format.TEXT,
) -> None:
    """Show the progress of an output or of a job on a cluster until it ends.

    Exit codes: 0 complete, 1 the job failed or its run has died, 2 there is no such output or job.
    """
    from batchinference.api.targets import Target
    from batchinference.cli.watch import watch_status

    watched = Target(target, namespace, context)
    raise typer.Exit(watch_status(watched, interval, form=output))


@app.command()
def errors(
    target: TargetArgument,
    namespace: Namespace = None,
    context: Context = None,
    output: Output = Format.TEXT,
) -> None:
    """Group the failed rows of an output by step and cause, with an example of each.

    Exit codes: 0 shown, 2 there is no such output or job.
    """
    from batchinference.api.targets import Target
    from batchinference.cli.show_output import show_errors

    show_errors(Target(target, namespace, context), output)


@app.command()
def logs(
    target: TargetArgument,
    namespace: Namespace = None,
    context: Context = None,
    previous: Annotated[
        bool, typer.Option("--previous", help="The stored log, even if the job is running.")
    ] = False,
    every: Annotated[bool, typer.Option("--list", help="List the stored logs instead.")] = False,
) -> None:
    """Print the log of the driver of a job that is running on a cluster, or the stored log.

    The stored log covers the last run, and is next to the output. While a run is in progress, and
    after it was killed, these are its last lines.

    Exit codes: 0 shown, 2 there is no such output or job, or no log.
    """
    from batchinference.api.targets import Target
    from batchinference.cli.show_output import show_logs

    show_logs(Target(target, namespace, context), every=every, previous=previous)


@app.command()
def report(
    target: TargetArgument,
    namespace: Namespace = None,
    context: Context = None,
    output: Output = Format.TEXT,
) -> None:
    """Print the report of the last run that has ended, which is stored next to the output.

    Exit codes: 0 shown, 2 there is no such output or job, or no report.
    """
    from batchinference.api.targets import Target
    from batchinference.cli.show_output import show_report

    show_report(Target(target, namespace, context), output)


@app.command()
def ui(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OUTPUT|JOB]...",
            help="Output paths, or names of a cluster's jobs. Default: all jobs of the namespace.",
        ),
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    port: Port = None,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Show jobs in the browser: live progress, failed rows, and reports.

    The page is served on this machine, to you only, until you press Ctrl+C.

    Exit codes: 0 stopped, 2 there is no cluster, or the port is in use.
    """
    from batchinference.cli.show_ui import UiOptions, show_ui

    options = UiOptions(targets or [], namespace, context, port, browser)
    raise typer.Exit(show_ui(options))
