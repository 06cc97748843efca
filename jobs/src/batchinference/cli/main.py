"""`batchinference`: run, validate, plan and render a BatchInference file.

Nothing heavy is imported here: commands import what they need, so that checking a file is quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from batchinference import __version__
from batchinference.cli import exits

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Offline model inference over large data sets, from one YAML file.",
)
File = Annotated[str, typer.Argument(metavar="FILE", help="The job's file; - reads stdin.")]
Defaults = Annotated[
    Path | None,
    typer.Option(help="YAML file with the operator's defaults, in the form of spec.cluster."),
]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"batchinference {__version__}")
        raise typer.Exit(exits.SUCCESS)


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="The version.")
    ] = False,
) -> None:
    """Options of the program itself."""


@app.command()
def run(
    file: File,
    address: Annotated[
        str | None, typer.Option(help="Run on this Ray cluster ('auto': the one here) instead.")
    ] = None,
    report_directory: Annotated[
        Path | None, typer.Option(help="Keep the job's report in this directory while it runs.")
    ] = None,
    sample: Annotated[int, typer.Option(min=0, help="Rows of the output to show.")] = 0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show Ray's messages.")] = False,
) -> None:
    """Run a job on this machine, with a Ray of its own.

    Exit codes: 0 the output is complete, 1 the job failed, 2 the file is wrong or its input is
    missing, 130 interrupted.
    """
    from batchinference.cli.run import RunOptions, run_file

    options = RunOptions(address, report_directory, sample, verbose)
    raise typer.Exit(run_file(file, options))


@app.command()
def validate(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Files; - is stdin.")],
) -> None:
    """Check files without running anything; say all that is wrong with them.

    Exit codes: 0 all are valid, 2 at least one is not.
    """
    from batchinference.cli.check import validate_files

    raise typer.Exit(validate_files(files))


@app.command()
def plan(file: File, defaults: Defaults = None) -> None:
    """Show the stages and pods that a cluster would run a job with."""
    from batchinference.cli.check import show_plan

    raise typer.Exit(show_plan(file, defaults))


@app.command()
def render(file: File, defaults: Defaults = None) -> None:
    """Print the objects that the operator would create for a job, as YAML."""
    from batchinference.cli.check import render_file

    raise typer.Exit(render_file(file, defaults))


def main() -> None:
    app()
