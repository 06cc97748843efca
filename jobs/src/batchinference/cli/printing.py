"""Prints lines and data without the control characters that they may contain."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import typer

from batchinference.text import escaped_controls, in_one_line, without_controls


class Format(StrEnum):
    """The format in which a command prints its data."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


def echo(text: str, *, err: bool = False) -> None:
    """Print a line to stdout, or to stderr."""
    typer.echo(without_controls(text), err=err)


def print_data(data: Any, form: Format) -> None:
    """Print data as one JSON or YAML document."""
    if form is Format.JSON:
        typer.echo(escaped_controls(json.dumps(data, indent=2, default=str)))
        return
    from batchinference.cli.yaml_output import as_yaml

    echo(as_yaml([json.loads(json.dumps(data, default=str))]).rstrip())


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text in columns. The last column is not padded."""
    cells = [[in_one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        echo("  ".join(padded).rstrip())
