"""The program `batchinference`. Commands for clusters, outputs and setup are in other modules.

Each command imports its dependencies when it runs. So commands such as `validate` start fast.
"""

from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from batchinference.cli import cluster_commands, exits, output_commands, setup_commands
from batchinference.cli.options import File, Form, ReportForm, Settings, TrustOutput
from batchinference.cli.printing import Format
from batchinference.cli.verbosity import with_verbosity
from batchinference.version import __version__

GROUPS = {
    "Jobs on this machine": ("init", "preview", "run"),
    "Job files": ("validate", "plan"),
    "Outputs and jobs": ("status", "list", "errors", "logs", "verify", "ui"),
    "Jobs on a cluster": ("submit", "suspend", "resume", "cancel"),
    "This machine and the cluster": ("doctor",),
}
"""The commands in the order of the help text."""
MAX_SUMMARY = 60
"""Maximum number of characters of the summary of a command."""
ESTIMATED_ROWS = 200
"""Default number of rows over which `plan --estimate` runs the steps."""


class Commands(TyperGroup):
    """The commands, grouped in the help text."""

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the commands of each group, with their summaries, to the help text."""
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self._summary(ctx, name)) for name in names])

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        """Return the command with the name of the first argument. If the argument is a job file,
        print advice and exit."""
        name = args[0] if args else ""
        if name.endswith((".yaml", ".yml")):
            fix = f"Write batchinference run {name}, or batchinference validate {name} to check it"
            ctx.fail(f"'{name}' is a file, not a command. {fix}")
        return super().resolve_command(ctx, args)

    def _summary(self, ctx: typer.Context, name: str) -> str:
        command = self.get_command(ctx, name)
        return command.get_short_help_str(MAX_SUMMARY + 1) if command else ""


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich would take most of the startup time
    help="Offline model inference over large data sets, from one YAML file.",
)
Address = Annotated[
    str | None,
    typer.Option(help="HOST:PORT of a running Ray cluster, or 'auto' for that of this machine."),
]
Defaults = Annotated[
    Path | None,
    typer.Option(help="YAML file with the operator's defaults. It has the fields of spec.cluster."),
]
Policy = Annotated[
    Path | None,
    typer.Option(
        help="YAML file with the platform's policy. It has the fields of the chart value policy."
    ),
]

Estimate = Annotated[
    bool,
    typer.Option(
        "--estimate",
        help="Instead of the plan, show the estimated tokens, device hours and price of all rows. "
        "The steps run on this machine over the first rows, and send requests to endpoints.",
    ),
]
Prices = Annotated[
    tuple[float, float, float],
    typer.Option(
        metavar="HOUR INPUT OUTPUT",
        help="Prices for --estimate: a device hour, a million input tokens, a million output "
        "tokens.",
    ),
]
ReportDirectory = Annotated[
    Path | None, typer.Option(help="Write the report of the running job to this directory.")
]
RetryErrors = Annotated[
    bool, typer.Option("--retry-errors", help="Run only the failed rows of the job again.")
]
Trial = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="ROWS",
        help="Run a trial over the first rows, with its own output next to the job's output.",
    ),
]
Restart = Annotated[
    bool,
    typer.Option(
        "--restart", help="Start over, and replace the output of earlier runs of this job."
    ),
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
    """Read the options that need no command."""


@app.command()
def run(  # noqa: PLR0913, PLR0917 - typer requires one parameter per option
    file: File,
    address: Address = None,
    report_directory: ReportDirectory = None,
    limit: Trial = None,
    sample: Annotated[int, typer.Option(min=0, help="Number of output rows to show.")] = 0,
    restart: Restart = False,
    retry_errors: RetryErrors = False,
    form: ReportForm = Format.TEXT,
    settings: Settings = None,
) -> None:
    """Run a job on this machine.

    The command starts Ray, or uses the Ray cluster of --address. With --quiet, it prints only the
    summary of a failed job and the rows of --sample.

    Exit codes: 0: the output is complete; 1: the job failed; 2: the job was refused before Ray
    started; 130: interrupted.
    """
    from batchinference.cli.run import RunOptions, run_file

    options = RunOptions(
        address,
        report_directory,
        sample,
        restart=restart,
        retry_errors=retry_errors,
        form=form,
        settings=settings or (),
        limit=limit,
    )
    raise typer.Exit(run_file(file, options))


@app.command()
def preview(
    file: File,
    rows: Annotated[int, typer.Option("-n", min=1, max=1000, help="Number of rows.")] = 5,
    form: Form = Format.TEXT,
    settings: Settings = None,
) -> None:
    """Show what the steps do with the first rows of a job.

    The steps run without Ray, and nothing is written.

    Exit codes: 0: done; 1: a row or a step failed; 2: the job was refused before the first step;
    130: interrupted.
    """
    from batchinference.cli.preview import preview_file

    raise typer.Exit(preview_file(file, rows, settings or (), form))


@app.command()
def validate(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Job files; - is stdin.")],
    fields_only: Annotated[
        bool, typer.Option("--fields-only", help="Check the fields, but no input, model or code.")
    ] = False,
    form: Form = Format.TEXT,
    settings: Settings = None,
) -> None:
    """Check job files, and print all problems.

    Also checks the input, columns, models, code and output of a job. Runs and writes nothing.

    Exit codes: 0: all files are valid; 2: a file is not valid.
    """
    from batchinference.cli.validate_and_plan import validate_files

    raise typer.Exit(validate_files(files, settings or (), deep=not fields_only, form=form))


@app.command()
def plan(  # noqa: PLR0913, PLR0917 - typer requires one parameter per option
    file: File,
    defaults: Defaults = None,
    policy: Policy = None,
    estimate: Estimate = False,
    sample: Annotated[int, typer.Option(min=1, help="First rows of --estimate.")] = ESTIMATED_ROWS,
    prices: Prices = (0, 0, 0),
    form: Form = Format.TEXT,
    settings: Settings = None,
) -> None:
    """Show the pods or the objects of a job on a cluster.

    With --format yaml or json, print the objects that the operator would create. `kubectl apply`
    accepts them.

    Exit codes: 0: shown; 1: a row failed (--estimate); 2: the job is refused, or a step cannot run.
    """
    from batchinference.cli.preview import preview_file
    from batchinference.cli.validate_and_plan import show_plan

    if not estimate and (sample != ESTIMATED_ROWS or any(prices)):
        raise typer.BadParameter("add --estimate", param_hint="--sample and --prices")
    if not estimate:
        raise typer.Exit(show_plan(file, defaults, policy, settings or (), form))
    if defaults or policy:
        problem = "with --estimate, the steps run here, without the settings of a cluster"
        raise typer.BadParameter(problem, param_hint="--defaults and --policy")
    if not all(0 <= price < inf for price in prices):
        raise typer.BadParameter("a price is a number from 0", param_hint="--prices")
    raise typer.Exit(preview_file(file, sample, settings or (), form, prices))


@app.command()
def verify(
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="A job's write.path.")],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Skip checksums. Count rows only in files that store their number."
        ),
    ] = False,
    trust_output: TrustOutput = False,
    form: Form = Format.TEXT,
) -> None:
    """Prove that an output holds each input row once.

    Each row must have been written, failed or filtered. Input and output are read again, and
    compared with the state of the job. Files must be readable and unchanged.

    Exit codes: 0: proven; 1: not proven; 2: no output, or --trust-output is needed; 3: unfinished,
    but correct so far.
    """
    from batchinference.cli.verify import verify_output

    raise typer.Exit(verify_output(output, quick=quick, trusted=trust_output, form=form))


for module in (output_commands, cluster_commands, setup_commands):
    app.registered_commands.extend(module.app.registered_commands)
for command in app.registered_commands:
    if command.callback:
        command.callback = with_verbosity(command.callback)
