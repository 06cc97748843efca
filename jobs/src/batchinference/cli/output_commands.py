"""The commands `status`, `watch`, `errors`, `logs` and `report`."""

from __future__ import annotations

from typing import Annotated

import typer

from batchinference.cli.printing import Format

app = typer.Typer()
TargetArgument = Annotated[
    str,
    typer.Argument(metavar="OUTPUT|JOB", help="An output path, or the name of a cluster's job."),
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="The namespace of the job.")
]
Context = Annotated[
    str | None, typer.Option("--context", help="The context of the kubeconfig to use.")
]
Output = Annotated[Format, typer.Option("--output", "-o", help="The format of the result.")]


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
    from batchinference.cli.show_status import show_status
    from batchinference.cli.targets import Target

    show_status(Target(target, namespace, context), output)


@app.command()
def watch(
    target: TargetArgument,
    namespace: Namespace = None,
    context: Context = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two updates.")] = 2.0,
) -> None:
    """Show the progress of an output or of a job on a cluster until it ends.

    Exit codes: 0 complete, 1 the job failed or its run has died, 2 there is no such output or job.
    """
    from batchinference.cli.show_status import watch_status
    from batchinference.cli.targets import Target

    raise typer.Exit(watch_status(Target(target, namespace, context), interval))


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
    from batchinference.cli.show_output import show_errors
    from batchinference.cli.targets import Target

    show_errors(Target(target, namespace, context), output)


@app.command()
def logs(
    target: TargetArgument,
    namespace: Namespace = None,
    context: Context = None,
    every: Annotated[bool, typer.Option("--list", help="List the stored logs instead.")] = False,
) -> None:
    """Print the log of the last run that has ended, which is stored next to the output.

    Exit codes: 0 shown, 2 there is no such output or job, or no log.
    """
    from batchinference.cli.show_output import show_logs
    from batchinference.cli.targets import Target

    show_logs(Target(target, namespace, context), every=every)


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
    from batchinference.cli.show_output import show_report
    from batchinference.cli.targets import Target

    show_report(Target(target, namespace, context), output)
