"""Determines which input rows the manifest entries hold, and which they hold more than once.

A job uses only the entries that fit together (see `row_set`). This module uses all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batchinference.pipeline import row_ids
from batchinference.pipeline.commit.manifest_entry import ManifestEntry, Range
from batchinference.pipeline.commit.row_set import RowSet
from batchinference.pipeline.row_batch import FULL_SHARE
from batchinference.pipeline.row_ids import MissingRows


@dataclass(frozen=True)
class Sizes:
    """The number of rows of each input file: `rows_each` for every file, or its value in `ends`.
    The number is unknown for other files."""

    files: int
    ends: dict[int, int]
    rows_each: int | None = None

    @property
    def total(self) -> int | None:
        """The number of input rows; None unless the rows of every file are known."""
        if self.rows_each is not None:
            return self.files * self.rows_each
        return sum(self.ends.values()) if len(self.ends) == self.files else None

    def of(self, files: np.ndarray) -> np.ndarray:
        """Return the number of rows of the files with these numbers, int64: 0 for files that do not
        exist, and the maximum int64 if it is unknown."""
        unknown = np.iinfo(np.int64).max if self.rows_each is None else self.rows_each
        sizes = [
            self.ends.get(file, unknown) if file < self.files else 0 for file in files.tolist()
        ]
        return np.array(sizes, dtype=np.int64)


@dataclass(frozen=True)
class AccountedRows:
    """`held` are the rows that manifest entries hold. `twice` are the rows that they hold more than
    once."""

    held: RowSet
    twice: list[Range]

    @classmethod
    def of(cls, entries: Sequence[ManifestEntry]) -> AccountedRows:
        parted, shares = _parted(entries)
        whole, over = parted[shares >= FULL_SHARE], parted[shares > FULL_SHARE]
        starts, stops = _ranges(entries)
        held, twice = _merged(np.concatenate([starts, whole]), np.concatenate([stops, whole + 1]))
        part = [row for row in parted[shares < FULL_SHARE].tolist() if held.has(row)]
        over = np.concatenate([over, np.array(part, dtype=np.int64)])
        return cls(held, sorted(twice + _named(over, over + 1)))

    @property
    def rows(self) -> int:
        """The number of held rows, each counted once."""
        return self.held.rows

    def gaps(self, sizes: Sizes) -> MissingRows:
        """Return the rows of the input that are not held."""
        return self.held.gaps(sizes.files, sizes.ends, sizes.rows_each)

    def beyond(self, sizes: Sizes) -> list[Range]:
        """Return the rows that are held but that the input does not have."""
        files, firsts = row_ids.unpack(self.held.starts)
        base = files << row_ids.ROW_BITS
        ends = sizes.of(files)
        over = self.held.stops - base > ends
        starts = base + np.maximum(firsts, np.minimum(ends, self.held.stops - base))
        return _named(starts[over], self.held.stops[over])


def _merged(starts: np.ndarray, stops: np.ndarray) -> tuple[RowSet, list[Range]]:
    """Merge ranges of ids in any order. Return the rows that they hold, and those that they hold
    more than once."""
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], stops[order]
    reach = np.maximum.accumulate(stops) if len(stops) else stops
    before = np.concatenate([[-1], reach])[: len(starts)]
    again, first = starts < before, np.flatnonzero(starts > before)
    last = np.append(first[1:], len(starts))[: len(first)] - 1
    twice = _named(starts[again], np.minimum(stops, before)[again])
    return RowSet(starts[first], reach[last]), twice


def _parted(entries: Sequence[ManifestEntry]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of rows held in parts, and the sum of the shares of each row."""
    sums: Counter[int] = Counter()
    for entry in entries:
        for file, row, share in entry.shares:
            sums[row_ids.pack(file, row)] += share
    return np.array([*sums], dtype=np.int64), np.array([*sums.values()], dtype=np.int64)


def _ranges(entries: Sequence[ManifestEntry]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ranges of whole rows: first ids, and ids after the last."""
    flat = np.array([each for entry in entries for each in entry.row_ranges], dtype=np.int64)
    flat = flat.reshape(-1, 3)
    base = flat[:, 0] << row_ids.ROW_BITS
    return base + flat[:, 1], base + flat[:, 2]


def _named(starts: np.ndarray, stops: np.ndarray) -> list[Range]:
    files, firsts = row_ids.unpack(starts)
    after = stops - (files << row_ids.ROW_BITS)
    return list(zip(files.tolist(), firsts.tolist(), after.tolist(), strict=True))
