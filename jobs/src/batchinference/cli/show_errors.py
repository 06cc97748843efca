"""The command `errors`."""

from typing import Any

from batchinference.api.output_status import error_groups, stored_jobs
from batchinference.api.targets import Target
from batchinference.cli.exit_on_error import read_output
from batchinference.cli.printing import Format, echo, print_data
from batchinference.cli.verbosity import note
from batchinference.pipeline.output.error_groups import ErrorGroup
from batchinference.text import counted, in_one_line


def show_errors(target: Target, form: Format) -> None:
    """Print the failed rows of an output by cause, with an example of each cause."""
    groups: list[ErrorGroup] = read_output("errors", target, error_groups)
    if form is not Format.TEXT:
        print_data([_data_of(group) for group in groups], form)
        return
    if not groups:
        echo("no failed rows")
        return
    rows = sum(group.rows for group in groups)
    echo(f"{counted(rows, 'failed row')}, {counted(len(groups), 'cause')}\n")
    for group in groups:
        _show_group(group)
    if not any(job.spec.why_not_retried for job in read_output("errors", target, stored_jobs)):
        note("`run FILE --retry-errors` runs only these rows again.")


def _data_of(group: ErrorGroup) -> dict[str, Any]:
    named = {"step": group.step, "cause": group.cause, "rows": group.rows}
    return {**named, "example": group.examples[0]}


def _show_group(group: ErrorGroup) -> None:
    example = group.examples[0]
    echo(f"{counted(group.rows, 'row')}, step '{group.step}': {in_one_line(group.cause)}")
    echo(f"  for example row {example['row']} of {in_one_line(str(example['path']))}:")
    echo(f"  {in_one_line(str(example['error']))}")
    if example["values"]:
        echo(f"  values: {in_one_line(example['values'])}")
    echo("")
