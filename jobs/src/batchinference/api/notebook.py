"""Shows the progress of a job in a notebook, as a table that is updated in place."""

from __future__ import annotations

import sys
from html import escape
from typing import Any

from rich.console import Console

from batchinference.api.display import Display, summary_of
from batchinference.spec.report import Report
from batchinference.spec.warnings import summarize
from batchinference.text import in_one_line

_CELL = "text-align:left;vertical-align:top;white-space:pre-wrap"


def in_notebook() -> bool:
    """Return whether this process runs the cells of a notebook."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module else None
    return hasattr(shell, "kernel")  # the shell of a terminal has none


class NotebookDisplay(Display):
    """Shows reports in one table below the cell, and other lines as the output of the cell."""

    def __init__(self, *, verbose: bool = False) -> None:
        # notebooks set FORCE_COLOR, but a terminal's progress bar would fill the cell
        console = Console(file=sys.stderr, force_jupyter=False, force_terminal=False)
        super().__init__(console, verbose=verbose)
        self._table: Any = None

    def show(self, report: Report) -> None:
        """Show the progress of a report, or its result, in place of the previous report."""
        from IPython.display import display

        shown = {"text/html": html_of(report), "text/plain": text_of(report)}
        if self._table is None:
            self._table = display(shown, raw=True, display_id=True)
        else:
            self._table.update(shown, raw=True)


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
    """Return the bar of a job that has not ended. It has no value if the total is unknown."""
    if report.state.ended:
        return ""
    progress = report.progress
    known = progress is not None and progress.total
    value = f' value="{progress.rows}" max="{progress.total}"' if progress and known else ""
    return f'<progress{value} style="width:100%"></progress>'


def _lines(report: Report) -> list[tuple[str, str]]:
    """Return the rows of the table: pairs of name and value, without control characters."""
    found = summary_of(report, resumes=True) if report.state.ended else _progress(report)
    return [(name, in_one_line(value)) for name, value in found]


def _progress(report: Report) -> list[tuple[str, str]]:
    state = f"{report.state.value}: {report.stage}" if report.stage else report.state.value
    lines = [("job", report.name), ("state", state)]
    if (progress := report.progress) is not None:
        lines.append(("rows", progress.rows_text))
        lines += [("speed", ", ".join(progress.pace))] if progress.pace else []
    if report.counts and report.counts.failed:
        lines.append(("failed rows", f"{report.counts.failed:,}"))
    if report.warnings:
        lines.append(("warnings", summarize(report.warnings)))
    return lines
