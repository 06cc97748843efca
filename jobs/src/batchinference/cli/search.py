"""The command `search`."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from batchinference.api.search import Hit, OutputSearch, SearchQuery, query_problem
from batchinference.cli import exits
from batchinference.cli.check import pipeline_is_installed
from batchinference.cli.printing import Format, as_data, echo, print_data
from batchinference.cli.verbosity import note
from batchinference.text import in_one_line

_PIPE_WIDTH = 10_000
"""Characters per line if stdout is not a terminal."""
SHOWN_WIDTH = 200
"""Characters per value: enough to show the end of a path."""


@dataclass(frozen=True)
class SearchOptions:
    """Options of `search`."""

    query: SearchQuery
    column: str | None
    job: str | None
    """The user's job file, whose model embeds the query."""
    trusted: bool
    form: Format


def search_output(output: str, options: SearchOptions) -> int:
    """Print the rows of an output that are nearest to the query, and return the exit code."""
    if problem := query_problem(output, options.query):
        echo(f"search: {problem}", err=True)
        return exits.BAD_INPUT
    if not pipeline_is_installed():
        return exits.BAD_INPUT
    from batchinference.pipeline.errors import JobFailure

    try:
        hits = _search(output, options)
    except JobFailure as failure:
        echo(f"search: {failure.message}", err=True)
        return exits.code_of(failure.reason)
    if options.form is Format.TEXT:
        _print_table(hits)
    else:
        print_data([as_data(hit) for hit in hits], options.form)
    return exits.SUCCESS


def _search(output: str, options: SearchOptions) -> list[Hit]:
    def notify(message: str) -> None:
        echo(f"search: {message}", err=True)

    search = OutputSearch(
        output, options.column, job=options.job, trusted=options.trusted, notify=notify
    )
    found = search.find(options.query)
    if found.skipped:
        note(f"search: {found.skipped} row(s) have no embedding", err=True)
    return found.hits


def _print_table(hits: list[Hit]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    from batchinference.api.display import short

    names = list(hits[0].columns) if hits else []
    table = Table(
        *("RANK", "SIMILARITY", "ROW"),
        *(escape(in_one_line(name)) for name in names),
        box=None,
        pad_edge=False,
    )
    for hit in hits:
        fixed = (str(hit.rank), f"{hit.similarity:.4f}", str(hit.row))
        table.add_row(*fixed, *(Text(short(hit.columns[name], SHOWN_WIDTH)) for name in names))
    Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(table)
