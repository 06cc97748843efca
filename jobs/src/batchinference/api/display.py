"""Shows the progress of a job as a bar (on a terminal) or as lines, and a summary at the end."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from batchinference.spec import BatchInference
from batchinference.spec.report import JobState, Report
from batchinference.text import byte_size, cut, in_one_line, named_lines, without_controls

if TYPE_CHECKING:
    from rich.console import Console

LINE_EVERY_PERCENT = 10
SHOWN_WIDTH, STRUCT_WIDTHS = 60, 5
"""Maximum number of characters of a value. Lists and structs may be STRUCT_WIDTHS times longer."""
SHOWN_ITEMS, MAX_FIELDS = 5, 20
"""Maximum number of items of a list, and of fields of a struct, that are shown."""


class Display:
    """Shows reports as they arrive. Use it as a context manager."""

    def __init__(
        self, console: Console | None = None, *, verbose: bool = False, silent: bool = False
    ) -> None:
        """Create a display. `verbose` shows the output of Ray and of this process above the bar.
        `silent` shows only the summary and the sample."""
        from rich.console import Console  # imported here, because `status` does not need it
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._silent = silent
        # a duplicate of stderr, because stderr may be redirected to a file for Ray's messages
        self._console = console or Console(file=os.fdopen(os.dup(2), "w"))
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[details]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            redirect_stdout=verbose,  # rich prints redirected output above the bar
            redirect_stderr=verbose,
        )
        self._task = self._bar.add_task("preparing", total=None, details="")
        self._last_line: tuple[str, int] | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._silent:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:  # without a terminal, rich would print an empty line
            self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line without control characters. A silent display prints nothing."""
        if not self._silent:
            self._print(text)

    def _print(self, text: str) -> None:
        shown = without_controls(text)
        self._console.print(shown, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def show(self, report: Report) -> None:
        """Show the progress of a report: a bar on a terminal, otherwise lines."""
        if self._console.is_terminal:
            self._move_bar(report)
        elif not report.state.ended:
            self._print_line(report)

    def _move_bar(self, report: Report) -> None:
        progress, troubles = report.progress, report.counts.troubles if report.counts else []
        self._bar.update(
            self._task,
            description=report.activity,
            completed=progress.rows if progress else 0,
            total=progress.total if progress else None,
            details=", ".join([progress.rows_text, *progress.pace, *troubles] if progress else []),
        )

    def _print_line(self, report: Report) -> None:
        """Print a line if the state is new, or if ten more percent of the rows are finished."""
        progress = report.progress
        percent = (progress.percent or 0) if progress else 0
        line = (report.activity, percent // LINE_EVERY_PERCENT)
        if line != self._last_line:
            self._last_line = line
            troubles = report.counts.troubles if report.counts else []
            figures = [*progress.figures, *progress.pace, *troubles] if progress else []
            self.say(", ".join([f"{report.name}: {report.activity}", *figures]))

    def summarize(
        self, report: Report, *, resumes: bool = True, files: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Print a summary table. `resumes` is whether the next run keeps the rows of this run.
        `files` are names and addresses of other files that the run has stored."""
        lines = [*summary_of(report, resumes=resumes), *files]
        width = max(len(name) for name, _ in lines) + 2
        for name, value in lines:
            self._print(name.ljust(width) + value.replace("\n", "\n" + " " * width))

    def show_sample(self, job: BatchInference, rows: int) -> None:
        """Print the first rows of the output."""
        from batchinference.pipeline.output.output_rows import first_rows

        for line in lines_of_rows(first_rows(job.spec.write, rows)):
            self._print(line)


def summary_of(report: Report, *, resumes: bool) -> list[tuple[str, str]]:
    """Return the lines of the summary of a run, as pairs of name and value."""
    lines = [("job", report.name), ("result", _result(report, resumes=resumes))]
    speed = report.progress.speed if report.progress else ""
    if report.message:
        reason = f"{report.reason}: " if report.reason else ""
        lines.append(("", reason + report.message))
    if report.counts:
        counts = report.counts
        shown = f"{counts.read:,} read, {counts.written:,} written"
        shown += f", {counts.failed:,} failed" if counts.failed else ""
        shown += f", {counts.filtered:,} filtered out" if counts.filtered else ""
        lines.append(("rows", shown))
    lines += [("files", str(report.replaced_files))] if report.replaced_files else []
    lines += [("tokens", report.tokens_text)] if report.tokens_text else []
    if report.output_bytes is not None:
        lines.append(("size", byte_size(report.output_bytes)))
    lines += named_lines("warnings", report.warnings)
    lines += named_lines("notes", report.notes)
    if report.state == JobState.SUCCEEDED and speed:
        lines.append(("speed", speed))
    lines += _lines_of_steps(report)
    if report.retries:
        lines.append(("retries", f"{report.retries} after a process had died"))
    if report.seconds:
        spent = ", ".join(f"{state} {value:.1f} s" for state, value in report.seconds.items())
        start = report.start_text if report.state == JobState.SUCCEEDED else ""
        lines.append(("time", f"{spent}; {start}".removesuffix("; ")))
    lines += [("cost", str(report.cost))] if report.cost else []
    lines.append(("output", report.output))
    if report.errors:
        lines.append(("errors", report.errors))
    return lines


def _lines_of_steps(report: Report) -> list[tuple[str, str]]:
    steps = [(in_one_line(name), one) for name, one in (report.steps or {}).items()]
    lines = []
    if steps:
        times = [f"{name} {one.rows_per_second:.1f} rows/s" for name, one in steps]
        lines.append(("steps", ", ".join(times) + " in each process"))
    texts = [f"{name} {one.reused or 0} results of equal rows and {one.cached or 0} from the cache"
             for name, one in steps if one.reused or one.cached]  # fmt: skip
    lines += [("reused", ", ".join(texts))] if texts else []
    tokens = [f"{name} {one.tokens_text}" for name, one in steps if one.tokens_text]
    lines += [("by step", "; ".join(tokens))] if len(tokens) > 1 else []
    for name, one in steps:
        shares = (f"{what} {100 * share:.0f} %" for what, share in one.occupancy.items())
        lines += [("replicas", f"{name} {', '.join(shares)}")] if one.occupancy else []
    return lines


def _result(report: Report, *, resumes: bool) -> str:
    progress = report.progress
    if report.reason != "Interrupted":
        return report.state.value
    if progress is None or not resumes:
        return "interrupted"
    total = f" of {progress.total}" if progress.total is not None else ""
    return f"interrupted; {progress.rows}{total} rows saved. Run the same command to resume."


def _shape(value: Any) -> list[int]:
    """Return the shape of nested lists of numbers, such as an image; [] for any other value. Reads
    only the first item of each list."""
    if isinstance(value, list) and value:
        inner = _shape(value[0])
        return [len(value), *inner] if inner or isinstance(value[0], int | float) else []
    return []


def lines_of_rows(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines that show rows. Each row has a line with its number, and one per value."""
    for number, row in enumerate(rows):
        yield f"row {number}:"
        for name, value in row.items():
            yield f"  {in_one_line(name)}: {short(value)}"


def short(value: Any, width: int = SHOWN_WIDTH) -> str:
    """Return a value as one line of about `width` characters; lists and structs may be longer."""
    if hasattr(value, "dtype"):
        return f"{'x'.join(map(str, value.shape))} {value.dtype}"
    if isinstance(value, str | bytes):
        value = value[: 8 * width]  # the conversion of long values takes time
    text = in_one_line(_plain_text(value, width))
    return cut(text, width if isinstance(value, str | bytes) else STRUCT_WIDTHS * width)


def _plain_text(value: Any, width: int) -> str:
    """Return a value as text, with rounded numbers and only the first items of lists."""
    match value:
        case float():
            is_usual = value == 0 or 0.001 <= abs(value) < 1e15
            return f"{round(value, 4)!r}" if is_usual else f"{value:.4g}"
        case list() if len(shape := _shape(value)) > 1:
            return f"{'x'.join(map(str, shape))} values"
        case list():
            shown = [_nested_text(item, width) for item in value[:SHOWN_ITEMS]]
            more = f", ...] ({len(value)} values)" if len(value) > SHOWN_ITEMS else "]"
            return f"[{', '.join(shown)}{more}"
        case dict():
            fields = (f"{name!r}: {_nested_text(item, width)}" for name, item in value.items())
            more = ", ..." if len(value) > MAX_FIELDS else ""
            return f"{{{', '.join(islice(fields, MAX_FIELDS))}{more}}}"
    return str(value)


def _nested_text(value: Any, width: int) -> str:
    if not isinstance(value, str | bytes):
        return _plain_text(value, width)
    begin = value[: 2 * width]
    return cut(repr(in_one_line(begin) if isinstance(begin, str) else begin), width)
