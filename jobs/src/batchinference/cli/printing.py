"""Prints lines, tables and data. Control characters in them are removed or escaped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer
from pydantic.alias_generators import to_camel

from batchinference.json_text import to_json
from batchinference.text import escaped_controls, in_one_line, without_controls

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Format(StrEnum):
    """The format in which a command prints its data."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


def echo(text: str, *, err: bool = False) -> None:
    """Print a line to stdout, or to stderr."""
    typer.echo(without_controls(text), err=err)


def print_data(data: Any, form: Format, indent: int | None = 2) -> None:
    """Print data as one JSON or YAML document. With `indent=None`, JSON is one line."""
    text = to_json(data, indent)
    if form is Format.JSON:
        echo(escaped_controls(text))
        return
    from batchinference.cli.yaml_output import as_yaml

    echo(as_yaml([json.loads(text)]).rstrip())


def as_data(value: DataclassInstance) -> dict[str, Any]:
    """Return a dataclass as a mapping with camelCase keys."""
    return asdict(value, dict_factory=lambda fields: {to_camel(n): each for n, each in fields})


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text in columns. The last column is not padded."""
    cells = [[in_one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        echo("  ".join(padded).rstrip())
