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
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import AfterValidator, ConfigDict, Field

from batchinference.pipeline import row_ids
from batchinference.pipeline.commit.state_fields import (
    STRICT,
    Checksum,
    FileName,
    Natural,
)

_File = Annotated[int, Field(strict=True, ge=0, lt=row_ids.MAX_FILES)]
_Row = Annotated[int, Field(strict=True, ge=0, le=row_ids.ROW_MASK + 1)]


def _not_empty(found: tuple[int, int, int]) -> tuple[int, int, int]:
    if found[1] >= found[2]:
        raise ValueError("a range of rows ends before it begins")
    return found


Range = Annotated[tuple[_File, _Row, _Row], AfterValidator(_not_empty)]
"""File, first row, row after the last: of the input."""
Content: TypeAlias = bytes | memoryview
Share = tuple[_File, _Row, Annotated[int, Field(strict=True, ge=0, le=row_ids.FULL_SHARE)]]
"""File, row, and which part of it (see `rows`)."""
End = tuple[_File, _Row]
"""File and rows in it, of a file whose end was seen."""


@dataclass(frozen=True)
class RowCounts:
    """Rows of the input, and what became of them: a row may have become several, or a part of
    those may be elsewhere, in which case it is not counted yet."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    read: Natural = 0
    written: Natural = 0
    failed: Natural = 0
    skipped: Natural = 0

    def __add__(self, other: RowCounts) -> RowCounts:
        return RowCounts(
            self.read + other.read,
            self.written + other.written,
            self.failed + other.failed,
            self.skipped + other.skipped,
        )


@dataclass(frozen=True)
class DataFile:
    """A file that a task has put: its path below the output or the errors, its size in bytes, and
    the checksum (CRC-32) of these."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: FileName
    bytes: Natural
    crc32: Checksum

    @classmethod
    def of(cls, name: str, content: Content) -> DataFile:
        return cls(name, len(content), zlib.crc32(content))


@dataclass(frozen=True)
class ManifestEntry:
    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    counts: RowCounts
    ranges: list[Range]
    """Whole rows."""
    shares: list[Share]
    """Rows of which the piece holds a part. Then it has no ranges."""
    data: list[DataFile]
    columns: list[tuple[str, str]]
    """The columns of the data, and their types."""
    errors: DataFile | None

    @property
    def files(self) -> list[DataFile]:
        """All that was put."""
        return [*self.data, self.errors] if self.errors else self.data

    def as_json(self) -> dict[str, Any]:
        # not asdict(self), which would copy every range
        errors = asdict(self.errors) if self.errors else None
        files = {"data": [asdict(file) for file in self.data], "errors": errors}
        return {**vars(self), **files, "counts": asdict(self.counts)}


def total(counts: Iterable[RowCounts]) -> RowCounts:
    return reduce(add, counts, RowCounts())


def counts_of(pieces: Iterable[ManifestEntry]) -> RowCounts:
    """Of several pieces. Parts of rows count as so many rows as they are together."""
    pieces = list(pieces)
    parts = sum(share for piece in pieces for _, _, share in piece.shares) // row_ids.FULL_SHARE
    return total([*(piece.counts for piece in pieces), RowCounts(read=parts)])
