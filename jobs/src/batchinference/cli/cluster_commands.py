"""The commands `submit`, `suspend`, `resume` and `cancel`, for jobs on a cluster."""

from typing import Annotated

import typer

from batchinference.cli.options import Context, File, Namespace, Settings

app = typer.Typer()
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of a job.")]


@app.command()
def submit(
    file: File,
    namespace: Namespace = None,
    context: Context = None,
    settings: Settings = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The name of the job, instead of the name in the file."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until each job has ended.")] = False,
) -> None:
    """Create or change the jobs and schedules in a file.

    Uses server-side apply.

    Exit codes: 0: applied; 1: a job failed (--wait); 2: the file is wrong or the cluster refused.
    """
    from batchinference.cli.submit_and_control import submit_file

    raise typer.Exit(submit_file(file, settings or (), name, namespace, context, wait=wait))


@app.command()
def suspend(name: Name, namespace: Namespace = None, context: Context = None) -> None:
    """Stop a job until `resume`. Its written rows are kept."""
    from batchinference.cli.submit_and_control import control

    control("suspend", name, namespace, context)


@app.command()
def resume(name: Name, namespace: Namespace = None, context: Context = None) -> None:
    """Continue a suspended job, or start a failed job again.

    A failed job is deleted and created again with the same spec. It computes only missing rows.
    """
    from batchinference.cli.submit_and_control import control

    control("resume", name, namespace, context)


@app.command()
def cancel(name: Name, namespace: Namespace = None, context: Context = None) -> None:
    """Stop a job and delete it. Its written rows are kept."""
    from batchinference.cli.submit_and_control import control

    control("cancel", name, namespace, context)
