"""Prints lines and data without the control characters that they may contain."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TextIO

import typer
from pydantic.alias_generators import to_camel

from batchinference.credentials import without_credentials
from batchinference.json_text import to_json
from batchinference.text import escaped_controls, in_one_line, without_controls

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Format(StrEnum):
    """The format in which a command prints its data."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


class LinesOfSteps(io.TextIOBase):
    """Prints what steps print on a stream, line by line, without credentials and control
    characters. The steps may print data of others."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._stream.write(f"{without_credentials(without_controls(line))}\n")
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def close(self) -> None:
        """Print the last line if it has no end. The stream stays open."""
        if self._line:
            self.write("\n")
        super().close()


def echo(text: str, *, err: bool = False) -> None:
    """Print a line to stdout, or to stderr."""
    typer.echo(without_controls(text), err=err)


def print_data(data: Any, form: Format) -> None:
    """Print data as one JSON or YAML document."""
    _print(data, form, indent=2)


def print_record(data: Any, form: Format) -> None:
    """Print data as one line of JSON, or as one document of a YAML stream."""
    _print(data, form, indent=None)


def _print(data: Any, form: Format, indent: int | None) -> None:
    text = to_json(data, indent)
    if form is Format.JSON:
        echo(escaped_controls(text))
        return
    from batchinference.cli.yaml_output import as_yaml

    echo(as_yaml([json.loads(text)]).rstrip())


def as_data(value: DataclassInstance) -> dict[str, Any]:
    """Return a dataclass as plain data, with the names of its fields in camelCase."""
    return asdict(value, dict_factory=_in_camel_case)


def _in_camel_case(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {to_camel(name): value for name, value in fields}


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text in columns. The last column is not padded."""
    cells = [[in_one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        echo("  ".join(padded).rstrip())
