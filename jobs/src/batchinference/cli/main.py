"""`batchinference`: run, validate, plan and render a BatchInference file, search and verify output.

Each command imports its own dependencies, so that commands such as `validate` start quickly.
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
TrustOutput = Annotated[
    bool,
    typer.Option(
        "--trust-output",
        help="Load models and send credentials to endpoints that the output names.",
    ),
]
Defaults = Annotated[
    Path | None,
    typer.Option(help="YAML file with the operator's defaults, in the form of spec.cluster."),
]
Policy = Annotated[
    Path | None,
    typer.Option(help="YAML file with the platform's policy, in the form of the chart value."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set a parameter of the job. Repeatable."),
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
def run(  # noqa: PLR0913, PLR0917 - typer requires one parameter per option
    file: File,
    address: Annotated[
        str | None, typer.Option(help="Run on this Ray cluster ('auto': the one here) instead.")
    ] = None,
    report_directory: Annotated[
        Path | None, typer.Option(help="Keep the job's report in this directory while it runs.")
    ] = None,
    sample: Annotated[int, typer.Option(min=0, help="Rows of the output to show.")] = 0,
    preview: Annotated[
        int, typer.Option(min=0, help="Run over the first rows, show them, and leave no output.")
    ] = 0,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start over, and replace the output of earlier runs.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show Ray's messages.")] = False,
    settings: Settings = None,
) -> None:
    """Run a job on this machine, with a Ray of its own.

    Exit codes: 0 the output is complete, 1 the job failed, 2 the file is wrong or its input is
    missing, 130 interrupted.
    """
    from batchinference.cli.run import RunOptions, run_file

    options = RunOptions(
        address,
        report_directory,
        sample,
        verbose,
        restart=restart,
        preview=preview,
        settings=settings or (),
    )
    raise typer.Exit(run_file(file, options))


@app.command()
def retry_errors(
    file: File,
    address: Annotated[
        str | None, typer.Option(help="Run on this Ray cluster ('auto': the one here) instead.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show Ray's messages.")] = False,
    settings: Settings = None,
) -> None:
    """Try the rows of a job again that have failed, and no others.

    Exit codes: as those of run, 2 also where the job has no output yet.
    """
    from batchinference.cli.run import RunOptions, run_file

    options = RunOptions(address, verbose=verbose, retry_errors=True, settings=settings or ())
    raise typer.Exit(run_file(file, options))


@app.command()
def validate(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Files; - is stdin.")],
    settings: Settings = None,
) -> None:
    """Check files without running anything; say all that is wrong with them.

    Exit codes: 0 all are valid, 2 at least one is not.
    """
    from batchinference.cli.check import validate_files

    raise typer.Exit(validate_files(files, settings or ()))


@app.command()
def plan(
    file: File, defaults: Defaults = None, policy: Policy = None, settings: Settings = None
) -> None:
    """Show the stages and pods that a cluster would run a job with."""
    from batchinference.cli.check import Platform, show_plan

    raise typer.Exit(show_plan(file, Platform(defaults, policy), settings or ()))


@app.command()
def render(
    file: File, defaults: Defaults = None, policy: Policy = None, settings: Settings = None
) -> None:
    """Print the objects that the operator would create for a job, as YAML."""
    from batchinference.cli.check import Platform, render_file

    raise typer.Exit(render_file(file, Platform(defaults, policy), settings or ()))


@app.command()
def search(  # noqa: PLR0913, PLR0917 - typer requires one parameter per option
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="A finished job's write.path.")],
    text: Annotated[str | None, typer.Option(help="Find rows like this text.")] = None,
    image: Annotated[
        str | None, typer.Option(metavar="FILE", help="Find rows like this image.")
    ] = None,
    row: Annotated[
        str | None,
        typer.Option(
            metavar="ROW",
            help="Find rows like this one of the output: its number, or COLUMN=VALUE.",
        ),
    ] = None,
    count: Annotated[int, typer.Option("-k", min=1, help="How many rows.")] = 5,
    column: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column that holds the embeddings.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="Only rows for which this is true, as in filters."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="JOB", help="Your job file, whose model embeds a text or an image."),
    ] = None,
    trust_output: TrustOutput = False,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line.")] = False,
) -> None:
    """Find the rows of an output whose embeddings are most similar to a text, an image or a row.

    Exit codes: 0 done, 1 the job's model failed, 2 the output or the query is wrong.
    """
    from batchinference.cli.search import SearchOptions, search_output

    given = {"text": text, "image": image, "row": row}
    options = SearchOptions(given, count, column, where, model, trust_output, as_json)
    raise typer.Exit(search_output(output, options))


@app.command()
def verify(
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="A job's write.path.")],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Read no file as a whole: no checksums, only rows that files tell."
        ),
    ] = False,
    trust_output: TrustOutput = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Prove that each row of the input is in the output or among the errors, and is there once.

    Input and output are read again and compared with what the job has committed.

    Exit codes: 0 proven, 1 something is missing, there twice, beside it or damaged, or could not
    be read, 2 there is no output, 3 the output is unfinished, and what is there of it is right.
    """
    from batchinference.cli.verify import verify_output

    raise typer.Exit(verify_output(output, quick=quick, trusted=trust_output, as_json=as_json))


def main() -> None:
    app()


if __name__ == "__main__":
    main()
