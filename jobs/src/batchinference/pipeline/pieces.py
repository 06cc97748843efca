"""Pieces: rows of the input that count together or not at all, and the files that hold them.

A write task commits most of its rows as one piece. Rows of which something goes another way are in
pieces of their own, so that they can be done again without the others: those of which other tasks
hold a part, and those of which a part has failed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from typing import Any, TypeAlias

from batchinference.pipeline import rows

_TUPLES = ("ranges", "shares", "columns")
Range = tuple[int, int, int]
"""File, first row, row after the last: of the input."""
Content: TypeAlias = bytes | memoryview
Share = tuple[int, int, int]
"""File, row, and which part of it (see `rows`)."""


@dataclass(frozen=True)
class Counts:
    """Rows of the input, and what became of them: a row may have become several, or a part of
    those may be elsewhere, in which case it is not counted yet."""

    read: int = 0
    written: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.read + other.read,
            self.written + other.written,
            self.failed + other.failed,
            self.skipped + other.skipped,
        )


@dataclass(frozen=True)
class WrittenFile:
    """A file that a task has put: its path below the output or the errors, its size in bytes, and
    the checksum (CRC-32) of these."""

    name: str
    bytes: int
    crc32: int

    @classmethod
    def of(cls, name: str, content: Content) -> WrittenFile:
        return cls(name, len(content), zlib.crc32(content))


@dataclass(frozen=True)
class Piece:
    counts: Counts
    ranges: list[Range]
    """Whole rows."""
    shares: list[Share]
    """Rows of which the piece holds a part. Then it has no ranges."""
    data: list[WrittenFile]
    columns: list[tuple[str, str]]
    """The columns of the data, and their types."""
    errors: WrittenFile | None

    @property
    def files(self) -> list[WrittenFile]:
        """All that was put."""
        return [*self.data, self.errors] if self.errors else self.data

    def as_json(self) -> dict[str, Any]:
        # not asdict(self), which would copy every range
        errors = asdict(self.errors) if self.errors else None
        files = {"data": [asdict(file) for file in self.data], "errors": errors}
        return {**vars(self), **files, "counts": asdict(self.counts)}

    @classmethod
    def of_json(cls, raw: dict[str, Any]) -> Piece:
        tuples = {key: [tuple(entry) for entry in raw[key]] for key in _TUPLES}
        files = {
            "data": [WrittenFile(**file) for file in raw["data"]],
            "errors": WrittenFile(**raw["errors"]) if raw["errors"] else None,
        }
        return cls(**{**raw, **files, **tuples, "counts": Counts(**raw["counts"])})


def total(counts: Iterable[Counts]) -> Counts:
    return reduce(add, counts, Counts())


def counts_of(pieces: Iterable[Piece]) -> Counts:
    """Of several pieces. Parts of rows count as so many rows as they are together."""
    pieces = list(pieces)
    parts = sum(share for piece in pieces for _, _, share in piece.shares) // rows.WHOLE
    return total([*(piece.counts for piece in pieces), Counts(read=parts)])
