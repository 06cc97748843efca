"""Options and arguments that several commands share."""

from typing import Annotated

import typer

from batchinference.cli.printing import Format

File = Annotated[str, typer.Argument(metavar="FILE", help="The job's file; - reads stdin.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="The namespace of the job.")
]
Context = Annotated[
    str | None, typer.Option("--context", help="The context of the kubeconfig to use.")
]
Form = Annotated[Format, typer.Option("--format", "-o", help="The format of the result.")]
ReportForm = Annotated[
    Format, typer.Option("--format", "-o", help="Print the report to stdout as json or yaml.")
]


def _check_settings(settings: list[str] | None) -> list[str] | None:
    """Return the settings. Raises BadParameter for a setting without `=`. Otherwise, the error of
    `--set day monday` would be about the argument `monday`."""
    for setting in settings or ():
        if "=" not in setting:
            problem = f"'{setting}' is not written as NAME=VALUE. Write --set {setting}=VALUE"
            raise typer.BadParameter(problem)
    return settings


Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set a parameter of the job. Repeatable.",
        callback=_check_settings,
    ),
]
TrustOutput = Annotated[
    bool,
    typer.Option(
        "--trust-output",
        help="Trust the models and endpoints that the output names. Endpoints get credentials.",
    ),
]
