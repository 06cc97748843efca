"""What a reader is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from batchinference.pipeline.storage.location import Location

CHUNK_ROWS = 16384
"""Rows of a table that a reader yields, where it can choose."""


MAX_COLUMNS = 10_000
"""Columns of a text format. Each costs memory and time in every chunk, and a header is quickly
made."""


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be decoded, or some that follow each other, of which nothing but their
    number is known."""

    error: Exception
    rows: int = 1


Chunk: TypeAlias = pa.Table | BadRow


class Reader(Protocol):
    """Reads the files of one format.

    A storage error (OSError while opening or fetching) is raised: it says nothing about the row.
    What cannot be decoded becomes a BadRow in its place. The same file always yields the same
    rows in the same order.
    """

    extensions: ClassVar[tuple[str, ...]]
    """Endings of files that are read when a directory is named; empty for every file."""
    rows_exact: ClassVar[bool]
    """Whether `rows_in` counts rows; otherwise it estimates them."""

    def prepare(self, samples: list[Location]) -> None:
        """Learn from a few files what all must have in common, such as column types."""

    def read(self, file: Location) -> Iterator[Chunk]:
        """The rows of a file, in order."""

    def rows_in(self, file: Location, size: int) -> int | None:
        """Rows in a file of so many bytes, as cheaply as can be known or guessed."""

    def columns(self) -> list[str] | None:
        """The columns that `read` yields, once prepared; None when only reading tells."""


@runtime_checkable
class DivisibleReader(Reader, Protocol):
    """A reader of files that several tasks may share. `rows_in` counts exactly."""

    def starts(self, file: Location) -> list[int] | None:
        """The rows at which reading may begin without having read what is before; None where that
        is any row."""

    def read_part(self, file: Location, start: int, stop: int | None) -> Iterator[Chunk]:
        """Rows `start` up to `stop`; None stands for the end."""
