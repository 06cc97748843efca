"""The command `search`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from batchinference.api.files import (
    directory_of,
    parameter_values,
    read_text,
    with_absolute_paths,
)
from batchinference.cli import exits
from batchinference.cli.check import pipeline_is_installed
from batchinference.cli.printing import echo
from batchinference.cli.run import exit_code
from batchinference.spec import SpecError, parse_one
from batchinference.spec.expression import columns_of, parse_expression
from batchinference.spec.nearest import MAX_FOUND
from batchinference.spec.uris import Uri
from batchinference.text import escaped_controls, in_one_line

if TYPE_CHECKING:
    import numpy as np

    from batchinference.pipeline.search.index import Index
    from batchinference.pipeline.search.search import Choice

_PIPE_WIDTH = 10_000
"""Characters per line if stdout is not a terminal."""
SHOWN_WIDTH = 200
"""Characters per value: enough to show the end of a path."""


@dataclass(frozen=True)
class SearchOptions:
    """Options of `search`. `query` maps `text`, `image` and `row` to their values or None."""

    query: dict[str, str | None]
    count: int
    column: str | None
    where: str | None
    job: str | None
    """The user's job file, whose model embeds the query."""
    trusted: bool
    as_json: bool


@dataclass(frozen=True)
class Hit:
    """A row that was found. `columns` has its values, except embeddings and tensors."""

    rank: int
    similarity: float
    row: int
    columns: dict[str, Any]


def search_output(output: str, options: SearchOptions) -> int:
    """Print the rows of an output that are nearest to the query, and return the exit code."""
    if problem := _invalid_option(output, options):
        echo(problem, err=True)
        return exits.BAD_INPUT
    if not pipeline_is_installed():
        return exits.BAD_INPUT
    from batchinference.pipeline.errors import JobFailure

    try:
        hits = _search(output, options)
    except JobFailure as failure:
        echo(f"search: {failure.message}", err=True)
        return exit_code(failure.reason)
    _print_json(hits) if options.as_json else _print_table(hits)
    return exits.SUCCESS


def _invalid_option(output: str, options: SearchOptions) -> str | None:
    given = [f"--{name}" for name, value in options.query.items() if value is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none"
        return f"search: give exactly one of --text, --image and --row, got {got}"
    if options.count > MAX_FOUND:
        return f"search: -k: at most {MAX_FOUND} rows, got {options.count}"
    addresses = [address for address in (output, options.query["image"]) if address is not None]
    try:
        TypeAdapter(list[Uri]).validate_python(addresses)
        if options.where is not None:
            parse_expression(options.where)
    except ValidationError as error:
        (wrong, *_) = error.errors()
        return f"search: '{wrong['input']}': {wrong['msg']}"
    except ValueError as error:
        return f"search: --where: {error}"
    return None


def _search(output: str, options: SearchOptions) -> list[Hit]:
    from batchinference.pipeline.search.index import is_for_machines, open_index
    from batchinference.pipeline.search.search import search
    from batchinference.pipeline.storage.location import Location

    index = open_index(Location(output), options.column)
    choice = _choice(index, options.where)
    found = search(index, _embed_query(index, options), options.count, choice)
    if found.passed_over:
        echo(f"search: {found.passed_over} row(s) have no embedding", err=True)
    similarities, rows = found.of(0)
    shown = [field.name for field in index.schema if not is_for_machines(field.type)]
    columns = index.take(rows, shown).to_pylist() if shown else [{}] * len(rows)
    hits = zip(similarities.tolist(), rows.tolist(), columns, strict=True)
    return [Hit(rank, *hit) for rank, hit in enumerate(hits, start=1)]


def _embed_query(index: Index, options: SearchOptions) -> np.ndarray:
    from batchinference.pipeline import query
    from batchinference.pipeline.storage.location import Location

    given = options.query
    if (text := given["text"]) is not None:
        return query.of_text(_with_model(index, options), text)
    if (image := given["image"]) is not None:
        return query.of_image(_with_model(index, options), Location(image))
    return query.of_row(index, given["row"] or "")


def _with_model(index: Index, options: SearchOptions) -> Index:
    """Return the index with a specification whose model may be loaded.

    Raises BadInput if only the output names the model and the output is not trusted. Such a model
    may run code of the output's author, or send credentials to an endpoint of the author.
    """
    from batchinference.pipeline.errors import BadInput
    from batchinference.pipeline.query import named_model

    if options.job is not None:
        try:
            user_job = with_absolute_paths(
                parse_one(read_text(options.job), parameter_values()), directory_of(options.job)
            )
        except SpecError as error:
            raise BadInput(f"--model '{options.job}': {error}") from None
        return replace(index, spec=user_job.spec)
    if not options.trusted:
        raise BadInput(
            f"a text or an image is embedded by a model that '{index.output.uri}' names, and a "
            "model can run code and receive credentials. Pass --model JOB.yaml with the job that "
            "wrote the output, or --trust-output if you trust everyone who can write to it"
        )
    echo(f"search: '{index.output.uri}' is trusted: loading {named_model(index)}", err=True)
    return index


def _choice(index: Index, where: str | None) -> Choice | None:
    if where is None:
        return None
    from batchinference.pipeline.errors import BadInput, JobFailure
    from batchinference.pipeline.search.search import Choice
    from batchinference.pipeline.steps.relational import Filter

    rows = Filter("--where", where)
    try:
        rows.mask(index.schema.empty_table())  # reports an invalid filter before rows are read
    except JobFailure as failure:
        raise BadInput(failure.message.replace("step '--where'", "--where")) from None
    return Choice(sorted(columns_of(parse_expression(where))), rows.mask)


def _print_json(hits: list[Hit]) -> None:
    from batchinference.pipeline.output.writers.json import to_json

    for hit in hits:
        echo(escaped_controls(to_json(vars(hit))))


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
