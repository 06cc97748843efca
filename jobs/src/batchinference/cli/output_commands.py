"""The commands `status`, `list`, `errors`, `logs` and `ui`."""

from typing import Annotated

import typer

from batchinference.cli.options import Context, Form, Namespace
from batchinference.cli.printing import Format

app = typer.Typer()
TargetArgument = Annotated[
    str,
    typer.Argument(metavar="OUTPUT|JOB", help="The path of an output, or a job on a cluster."),
]
Port = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="The port of the page; 0 is any free port. Default: the first free port from 8484.",
    ),
]
Interval = Annotated[float, typer.Option(min=0.1, help="Seconds between two updates.")]


@app.command()
def status(  # noqa: PLR0913, PLR0917 - typer requires one parameter per option
    target: TargetArgument,
    namespace: Namespace = None,
    context: Context = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Update until the job ends.")
    ] = False,
    interval: Interval = 2.0,
    browser: Annotated[
        bool, typer.Option("--open", help="Open the report of the last run in the browser.")
    ] = False,
    form: Form = Format.TEXT,
) -> None:
    """Show the state, rows and last run of an output or a job.

    Exit codes: 0: shown; 1: the job failed or its run has died (--watch); 2: there is no such
    output or job.
    """
    from batchinference.api.targets import Target
    from batchinference.cli.show_status import open_report, show_status
    from batchinference.cli.watch import watch_status

    named = Target(target, namespace, context)
    code = watch_status(named, interval, form=form) if watch else show_status(named, form)
    if browser:
        open_report(named)
    raise typer.Exit(code)


@app.command("list")
def list_(
    directory: Annotated[
        str, typer.Argument(help="List the outputs in this directory and below it.")
    ] = ".",
    namespace: Namespace = None,
    context: Context = None,
    form: Form = Format.TEXT,
) -> None:
    """List the outputs below a directory, or a cluster's jobs.

    With --namespace or --context, the jobs of the namespace are listed.

    Exit codes: 0: listed; 2: the directory, an output in it or the cluster cannot be read.
    """
    from batchinference.api.targets import Target
    from batchinference.cli.show_list import show_list

    raise typer.Exit(show_list(Target(directory, namespace, context), form))


@app.command()
def errors(
    target: TargetArgument,
    namespace: Namespace = None,
    context: Context = None,
    form: Form = Format.TEXT,
) -> None:
    """Group failed rows by step and cause, with examples.

    Exit codes: 0: shown; 2: there is no such output or job.
    """
    from batchinference.api.targets import Target
    from batchinference.cli.show_errors import show_errors

    show_errors(Target(target, namespace, context), form)


@app.command()
def logs(
    target: TargetArgument,
    namespace: Namespace = None,
    context: Context = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the run ends.")
    ] = False,
    previous: Annotated[
        bool, typer.Option("--previous", help="Print the stored log of a running job.")
    ] = False,
    every: Annotated[bool, typer.Option("--list", help="List the stored logs.")] = False,
) -> None:
    """Print the log of a job on a cluster, or the stored log.

    For a job that is running on a cluster, this is the end of the log of its driver. The stored log
    is in the output, and belongs to the last run. During a run, its last lines are stored once a
    minute. If a run is killed, only these lines remain.

    Exit codes: 0: shown; 2: there is no such output or job, or no log.
    """
    from batchinference.api.targets import Target
    from batchinference.cli.show_logs import follow_log, list_logs, show_log

    named = Target(target, namespace, context)
    options = {"--list": every, "--follow": follow, "--previous": previous}
    if len(names := [name for name, is_set in options.items() if is_set]) > 1:
        raise typer.BadParameter("only one of them at a time", param_hint=" and ".join(names))
    if every:
        list_logs(named)
    elif follow:
        follow_log(named)
    else:
        show_log(named, previous=previous)


@app.command()
def ui(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OUTPUT|DIRECTORY|JOB]...",
            help="Outputs, directories with outputs below them, or names of jobs on a cluster. "
            "Default: all jobs of the namespace.",
        ),
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    port: Port = None,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Show jobs in the browser, with live progress.

    The page is served on this machine, to you only, until you press Ctrl+C.

    Exit codes: 0: stopped; 2: there is no cluster or no output, or the port is in use.
    """
    from batchinference.cli.show_ui import DEFAULT_PORTS, show_ui

    ports = DEFAULT_PORTS if port is None else [port]
    raise typer.Exit(show_ui(targets or [], namespace, context, ports, browser=browser))
