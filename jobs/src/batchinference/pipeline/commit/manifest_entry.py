"""Manifest entries: input rows that count together or not at all, and their files.

A write task commits most of its rows as one entry. Two kinds of rows have entries of their own, so
that they can be processed again without the others: rows of which other tasks hold a part, and rows
of which a part has failed.
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
from batchinference.pipeline.row_batch import FULL_SHARE

_File = Annotated[int, Field(strict=True, ge=0, lt=row_ids.MAX_FILES)]
_Row = Annotated[int, Field(strict=True, ge=0, le=row_ids.ROW_MASK + 1)]


def _not_empty(found: tuple[int, int, int]) -> tuple[int, int, int]:
    if found[1] >= found[2]:
        raise ValueError("a range of rows ends before it begins")
    return found


Range = Annotated[tuple[_File, _Row, _Row], AfterValidator(_not_empty)]
"""File, first row, row after the last, of the input."""
Content: TypeAlias = bytes | memoryview
Share = tuple[_File, _Row, Annotated[int, Field(strict=True, ge=0, le=FULL_SHARE)]]
"""File, row, and the share of the row (see `row_batch`)."""
End = tuple[_File, _Row]
"""File and its number of rows, for a file whose end was seen."""


@dataclass(frozen=True)
class RowCounts:
    """The number of input rows (`read`), and of the rows with each outcome. An input row may have
    become several rows. If other tasks hold a part of these, the input row is not counted yet."""

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
    """A file that a task has written: its path relative to the output or the errors directory, its
    size in bytes, and its checksum (CRC-32)."""

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
    row_ranges: list[Range]
    """Ranges of whole rows."""
    shares: list[Share]
    """Rows of which the entry holds a part. An entry with shares has no row ranges."""
    data: list[DataFile]
    columns: list[tuple[str, str]]
    """Names and types of the columns of the data."""
    errors: DataFile | None

    @property
    def files(self) -> list[DataFile]:
        """All data and error files."""
        return [*self.data, self.errors] if self.errors else self.data

    def as_json(self) -> dict[str, Any]:
        # asdict(self) would copy every range
        errors = asdict(self.errors) if self.errors else None
        files = {"data": [asdict(file) for file in self.data], "errors": errors}
        return {**vars(self), **files, "counts": asdict(self.counts)}


def total(counts: Iterable[RowCounts]) -> RowCounts:
    return reduce(add, counts, RowCounts())


def counts_of(entries: Iterable[ManifestEntry]) -> RowCounts:
    """Return the total counts of several entries. In `read`, shares of rows count as the number of
    whole rows that they add up to."""
    entries = list(entries)
    parts = sum(share for entry in entries for _, _, share in entry.shares) // FULL_SHARE
    return total([*(entry.counts for entry in entries), RowCounts(read=parts)])
