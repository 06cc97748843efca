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
    Format, typer.Option("--format", "-o", help="Also print the report to stdout.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set a parameter of the job. Repeatable."),
]
TrustOutput = Annotated[
    bool,
    typer.Option(
        "--trust-output",
        help="Trust the models and endpoints that the output names. Endpoints get credentials.",
    ),
]
