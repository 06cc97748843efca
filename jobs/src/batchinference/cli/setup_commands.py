"""The commands `init` and `doctor`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from batchinference.cli.options import Context, Form, Namespace, Settings
from batchinference.cli.printing import Format

app = typer.Typer()


Kind = Literal["images", "labels", "text", "documents", "audio", "llm", "python"]
"""The kinds of jobs that `init` writes."""


@app.command()
def init(  # noqa: PLR0913, PLR0917 - typer requires one parameter per option
    kind: Annotated[Kind | None, typer.Argument(help="The kind of job. Default: ask.")] = None,
    file: Annotated[Path, typer.Option(help="The file to write.")] = Path("job.yaml"),
    name: Annotated[
        str | None,
        typer.Option(help="The name of the job. Default: the name of the file or its directory."),
    ] = None,
    read: Annotated[str | None, typer.Option(help="The input: a directory, file or glob.")] = None,
    write: Annotated[str, typer.Option(help="The directory of the output.")] = "./out",
    model: Annotated[str | None, typer.Option(help="The name or directory of the model.")] = None,
    column: Annotated[
        str | None, typer.Option(help="The column that a labels, text or llm job reads.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="The labels of a labels job, separated by commas.")
    ] = None,
) -> None:
    """Write a commented job file.

    Exit codes: 0: written; 2: an option is missing or wrong, or the file exists.
    """
    from batchinference.cli.init import Answers, write_job

    answers = Answers(name, read, write, model, column, labels)
    raise typer.Exit(write_job(kind, file, answers))


@app.command()
def doctor(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", help="A job's file, to check the job's output and image."),
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    form: Form = Format.TEXT,
    settings: Settings = None,
) -> None:
    """Check what jobs need here and on the cluster.

    With a job's file, a small file is written to its output, and deleted.

    Exit codes: 0: jobs can run on this machine; 1: something that jobs need is missing.
    """
    from batchinference.cli.doctor import examine

    raise typer.Exit(examine(file, settings or (), namespace, context, form))
