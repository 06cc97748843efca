"""The command `preview`, and the option `--estimate` of `plan`."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from batchinference.api.job_files import directory_of, load_job
from batchinference.cli import exits
from batchinference.cli.installed_packages import pipeline_is_installed
from batchinference.cli.printing import Format, as_data, echo, print_data, print_table
from batchinference.cli.validate_and_plan import print_problems
from batchinference.cli.verbosity import note
from batchinference.credentials import LineMasker
from batchinference.pipeline.error_classification import root_cause
from batchinference.plan import plan_for_machine
from batchinference.shadowing_files import shadowing
from batchinference.spec import BatchInference, Problem, SpecError
from batchinference.text import counted, in_one_line, without_controls

if TYPE_CHECKING:
    from batchinference.pipeline.preview import Outcome, Preview


def preview_file(
    file: str,
    rows: int,
    settings: Sequence[str] = (),
    form: Format = Format.TEXT,
    prices: Sequence[float] | None = None,
) -> int:
    """Run the steps of the job in a file over its first rows. Print what each step does, and the
    resulting rows. With `prices`, print an estimate of the tokens and cost of all rows instead.
    Return the exit code, which is 1 if a row has failed."""
    directory = directory_of(file)
    try:
        job = _load(file, settings, directory)
    except SpecError as error:
        print_problems(file, error)
        return exits.BAD_INPUT
    if not pipeline_is_installed():
        return exits.BAD_INPUT
    outcomes: list[Outcome] = []
    try:
        preview = _prepared(job, directory, rows)
        _show(preview, form, outcomes) if prices is None else _show_estimates(preview, form, prices)
        return exits.JOB_FAILED if preview.batch.errors.num_rows else exits.SUCCESS
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        raise  # the program that reads stdout has ended, for example `head`
    except SystemExit as end:
        echo(f"{job.metadata.name}: a step called sys.exit({end.code})", err=True)
        return exits.JOB_FAILED
    except Exception as error:  # noqa: BLE001 - storage and libraries may raise any error
        failure = root_cause(error)
        echo(f"{job.metadata.name}: {failure.message}", err=True)
        return exits.code_of(failure.reason) if outcomes else exits.BAD_INPUT


def _load(file: str, settings: Sequence[str], directory: Path) -> BatchInference:
    """Return the job in a file. Raises SpecError if the job cannot run on this machine."""
    job = load_job(file, settings)
    if problems := [Problem("", problem) for problem in shadowing([str(directory)])]:
        raise SpecError(problems)
    plan_for_machine(job.spec)
    return job


class LinesOfSteps(io.TextIOBase):
    """A stream for what steps print. It writes complete lines to another stream, without
    credentials and control characters, because the text is not trusted."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._parts: list[str] = []
        self._mask = LineMasker()

    def write(self, text: str) -> int:
        """Write the complete lines, and keep the text after the last line break."""
        if "\n" not in text:
            self._parts.append(text)
            return len(text)
        *lines, rest = "".join([*self._parts, text]).split("\n")
        self._parts = [rest] if rest else []
        for line in lines:
            self._stream.write(f"{self._mask(without_controls(line))}\n")
        return len(text)

    def flush(self) -> None:
        """Flush the underlying stream. An incomplete line stays in this object."""
        self._stream.flush()

    def fileno(self) -> int:
        """Return the descriptor of the underlying stream, for steps that write to it directly."""
        return self._stream.fileno()

    def close(self) -> None:
        """Write an incomplete last line. The underlying stream stays open."""
        if self._parts:
            self.write("\n")
        super().close()


def _show(preview: Preview, form: Format, outcomes: list[Outcome]) -> None:
    """Print what each step does and the resulting rows. Adds the outcomes of reading and of each
    step to `outcomes`."""
    from batchinference.api.display import lines_of_rows
    from batchinference.api.preview import lines_of
    from batchinference.pipeline.output.python_rows import rows_of_table
    from batchinference.pipeline.report.builder import NO_ROWS

    rows = preview.rows
    # with JSON and YAML, only data is printed to stdout
    stream = sys.stdout if form is Format.TEXT else sys.stderr
    with LinesOfSteps(stream) as output, redirect_stdout(output):
        for outcome in preview.run():
            for remark in () if outcomes else preview.remarks:
                note(remark, err=True)
            outcomes.append(outcome)
            for line in lines_of(outcome) if form is Format.TEXT else ():
                echo(line)
    if not sum(outcome.rows + outcome.filtered + outcome.failed for outcome in outcomes):
        note(NO_ROWS, err=True)
    written = preview.written_rows()
    shown = rows_of_table(written.slice(0, rows))
    if form is Format.TEXT:
        for line in lines_of_rows(shown):
            echo(line)
        if written.num_rows > rows:
            echo(f"... and {counted(written.num_rows - rows, 'more row')}")
    else:
        steps = [as_data(outcome) for outcome in outcomes]
        print_data({"steps": steps, "rows": list(map(_plain, shown))}, form)


def _show_estimates(preview: Preview, form: Format, prices: Sequence[float]) -> None:
    from batchinference.pipeline.estimate import estimates

    with LinesOfSteps(sys.stderr) as output, redirect_stdout(output):
        items = list(estimates(preview))
    if failed := preview.batch.errors.num_rows:
        echo(f"{counted(failed, 'row')} failed: batchinference preview shows why", err=True)
    if form is not Format.TEXT:
        print_data([{**as_data(each), "price": each.price(prices)} for each in items], form)
        return
    print_table([("STEP", "ROWS", "INPUT TOKENS", "OUTPUT TOKENS", "DEVICE HOURS", "PRICE"), *(
        (
            *(each.step, f"{each.rows:,}", _text_of(each.input_tokens)),
            *(_text_of(each.output_tokens), _text_of(each.device_hours, ",.3g")),
            _text_of(each.price(prices), ",.2f") if any(prices) else "-",
        )
        for each in items
    )])  # fmt: skip
    for each in items:
        if each.note:
            note(f"{each.step}: {in_one_line(each.note)}", err=True)


def _text_of(known: tuple[float, float] | None, form: str = ",") -> str:
    if known is None:
        return "unknown"
    low, high = (format(number, form) for number in known)
    return low if low == high else f"{low} to {high}"


def _prepared(job: BatchInference, directory: Path, rows: int) -> Preview:
    from batchinference.api.preview import preview_of
    from batchinference.pipeline.steps.import_path import add_import_path

    add_import_path(str(directory))
    preview = preview_of(job, rows)
    for text in preview.plan.notes:
        note(text, err=True)
    return preview


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as plain data. A text with shape and type replaces each tensor or image."""
    from batchinference.api.display import short

    return {name: short(value) if hasattr(value, "dtype") else value for name, value in row.items()}
