"""Shows a job in a notebook as a table: first its progress, and at the end its result."""

import sys
from html import escape
from typing import Any

from rich.console import Console

from batchinference.api.display import Display, summary_of
from batchinference.spec.report import Report
from batchinference.spec.warnings import summarize
from batchinference.text import in_one_line

_CELL = "text-align:left;vertical-align:top;white-space:pre-wrap"
_IN_PYTHON = {
    "`batchinference run FILE --retry-errors`": "run(job, retry_errors=True)",
    "`batchinference run FILE --restart`": "run(job, restart=True)",
    "--retry-errors": "retry_errors=True",
    "--restart": "restart=True",
}
"""Command-line options in messages, and the Python code that replaces them."""


def cell_number() -> int | None:
    """Return the number of the notebook cell that is running; None outside of a notebook."""
    module = sys.modules.get("IPython")
    shell: Any = module.get_ipython() if module else None
    # IPython in a terminal has no kernel
    return shell.execution_count if hasattr(shell, "kernel") else None


def with_python_arguments(message: str) -> str:
    """Return a message with arguments of the function `run` in place of options."""
    for option, argument in _IN_PYTHON.items():
        message = message.replace(option, argument)
    return message


class NotebookDisplay(Display):
    """Shows reports in one table below the cell. Prints other lines as output of the cell."""

    def __init__(self, *, verbose: bool = False) -> None:
        # notebooks set FORCE_COLOR, and rich would then fill the cell with a progress bar.
        # stdout is used because notebooks show stderr as an error
        console = Console(file=sys.stdout, force_jupyter=False, force_terminal=False)
        super().__init__(console, verbose=verbose)
        self._table: Any = None

    def show(self, report: Report) -> None:
        """Show a report in place of the previous report."""
        if self._table is None:
            self._table = show(report)
        else:
            self._table.update(_forms(report), raw=True)


def show(report: Report) -> Any:
    """Show a report below the cell, and return a handle with the method `update`."""
    from IPython.display import display

    return display(_forms(report), raw=True, display_id=True)


def _forms(report: Report) -> dict[str, str]:
    return {"text/html": html_of(report), "text/plain": text_of(report)}


def html_of(report: Report) -> str:
    """Return the progress or the result of a job as an HTML table."""
    cells = "".join(
        f'<tr><th style="{_CELL}">{escape(name)}</th><td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in _lines(report)
    )
    return f"{_bar(report)}<table>{cells}</table>"


def text_of(report: Report) -> str:
    """Return the progress or the result of a job as text."""
    return "\n".join(f"{name or 'message'}: {value}" for name, value in _lines(report))


def _bar(report: Report) -> str:
    """Return a progress bar as HTML; empty if the job has ended. If the total is unknown, the bar
    has no value."""
    if report.state.ended:
        return ""
    progress = report.progress
    known = progress is not None and progress.total
    value = f' value="{progress.rows}" max="{progress.total}"' if progress and known else ""
    return f'<progress{value} style="width:100%"></progress>'


def _lines(report: Report) -> list[tuple[str, str]]:
    """Return the rows of the table: pairs of name and value, without control characters."""
    lines = summary_of(report, resumes=True) if report.state.ended else _progress(report)
    return [(name, in_one_line(with_python_arguments(value))) for name, value in lines]


def _progress(report: Report) -> list[tuple[str, str]]:
    state = f"{report.activity}: {report.stage}" if report.stage else report.activity
    lines = [("job", report.name), ("state", state)]
    if (progress := report.progress) is not None:
        lines.append(("rows", progress.rows_text))
        lines += [("speed", ", ".join(progress.pace))] if progress.pace else []
    if report.counts and report.counts.failed:
        lines.append(("failed rows", f"{report.counts.failed:,}"))
    if report.warnings:
        lines.append(("warnings", summarize(report.warnings)))
    return lines
