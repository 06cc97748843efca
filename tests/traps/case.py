"""What a case of the corpus is: an input, a job that reads it, and the results that are right."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from traps import models

Row = dict[str, Any]
Content = str | bytes | Callable[[], bytes]
"""The content of a file, or a function that makes it."""
Reader = Callable[[Path], list[Row]]
"""Reads the directory of a case with another tool."""
Peer = Mapping[str, Any] | Reader | str
"""Options for the tool's usual reader of the format; a reader of its own; or, if the tool cannot do
what the case is about, the reason."""


@dataclass(frozen=True)
class Outcome:
    """What a tool did with a case."""

    rows: Sequence[Row] = ()
    error: str = ""
    """Why the tool gave no result."""
    failed: Sequence[str] = ()
    """The errors of the rows that are recorded as failed."""
    warnings: Mapping[str, int] = field(default_factory=dict)
    """The number of rows or files with each warning of the report."""
    said: str = ""
    """What the tool warned about in its log."""
    problems: str = ""
    """What `batchinference validate` says."""


@dataclass(frozen=True)
class Right:
    """The rows that are right, in any order."""

    rows: Sequence[Row] | Callable[[Path], Sequence[Row]] = ()
    """The rows, or a function that computes them from the directory of the case."""
    failed: int = 0
    """The number of failed rows."""
    says: str = ""
    """What the error of each failed row has to name, as a regular expression."""
    warnings: Mapping[str, int] = field(default_factory=dict)
    """The number of rows or files that BatchInference counts, by warning."""
    notice: str = ""
    """What a tool that counts no warnings has to say instead, as a regular expression. Empty if
    the rows alone show what was done."""
    holds: Callable[[Sequence[Row]], bool] | None = None
    """A condition on the rows, instead of their values."""


@dataclass(frozen=True)
class Refused:
    """Refusing the input is right: there is no result that its owner would expect."""

    says: str
    """What the message has to name, as a regular expression."""
    check_only: bool = False
    """Whether it is enough that `validate` reports it."""


Expected = Right | Refused


@dataclass(frozen=True)
class Case:
    """An input that is easily read wrongly."""

    id: str
    """The number of its kind and a letter."""
    title: str
    right: tuple[Expected, ...]
    """What is right: one of these."""
    topic: str = ""
    """The module of the case."""
    files: Mapping[str, Content] = field(default_factory=dict)
    """The input files, below the directory `in`."""
    write: Callable[[Path], object] | None = None
    """Writes further files into the directory of the case."""
    read: Mapping[str, Any] = field(default_factory=dict)
    steps: Sequence[Mapping[str, Any]] = ()
    output: Mapping[str, Any] = field(default_factory=lambda: {"format": "parquet"})
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the job."""
    view: Callable[[Row], Row] | None = None
    """Turns a row of any tool into the values that are compared."""
    near: float = 0.0
    """How far numbers may be off."""
    peers: Mapping[str, Peer] = field(default_factory=dict)
    refused: str = ""
    """Why BatchInference refuses the input, or a row of it, although it could be read. Empty if it
    is right."""
    runs: Callable[[Case, Path, Any], Outcome] | None = None
    """Runs the case with BatchInference, if one run of its job is not all."""

    @property
    def kind(self) -> str:
        """The number of its kind, such as R04."""
        return self.id.split(".")[0]

    @property
    def format(self) -> str:
        return str(self.read.get("format", ""))

    def write_input(self, directory: Path) -> None:
        """Write the input into a new directory."""
        (directory / "in").mkdir(parents=True)
        for name, content in self.files.items():
            path = directory / "in" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes_of(content))
        models.write(self.steps, directory)
        if self.write is not None:
            self.write(directory)


def bytes_of(content: Content) -> bytes:
    if isinstance(content, str):
        return content.encode()
    return content if isinstance(content, bytes) else content()


@dataclass
class Cases:
    """Collects the cases of a module."""

    topic: str
    list: list[Case] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)
    """The title of each kind."""

    def kind(self, number: str, title: str, **defaults: Any) -> Callable[..., None]:
        """Begin a kind. Return the function that adds a case, with these defaults of its fields."""
        self.kinds[number] = title
        return partial(self._add, number, defaults)

    def _add(
        self, number: str, defaults: dict[str, Any], title: str, *right: Expected, **fields: Any
    ) -> None:
        letter = "abcdefghijklmnopqrstuvwxyz"[sum(case.kind == number for case in self.list)]
        given = {**defaults, **fields}
        read = {**defaults.get("read", {}), **fields.get("read", {})}
        if options := given.pop("options", None):
            read["options"] = {**read.get("options", {}), **options}
        peers = {**defaults.get("peers", {}), **fields.get("peers", {})}
        given |= {"read": read, "peers": peers, "topic": self.topic}
        self.list.append(Case(f"{number}.{letter}", title, right, **given))


def text_matches(pattern: str, text: str) -> bool:
    """Return whether a text names what a regular expression describes."""
    return re.search(pattern, text, re.IGNORECASE | re.DOTALL) is not None
