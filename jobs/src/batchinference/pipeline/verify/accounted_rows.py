"""Which rows of the input pieces hold, and which of them more than once.

Unlike what a job goes by (see `coverage`), nothing is left out that does not fit together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batchinference.pipeline import row_ids
from batchinference.pipeline.commit.manifest_entry import ManifestEntry, Range
from batchinference.pipeline.commit.row_set import RowSet
from batchinference.pipeline.row_ids import MissingRows


@dataclass(frozen=True)
class Sizes:
    """How many rows the files of an input have: `rows_each`, or those of `ends`; of others it is
    not known."""

    files: int
    ends: dict[int, int]
    rows_each: int | None = None

    @property
    def total(self) -> int | None:
        """Rows of the input; None where they are not known of every file."""
        if self.rows_each is not None:
            return self.files * self.rows_each
        return sum(self.ends.values()) if len(self.ends) == self.files else None

    def of(self, files: np.ndarray) -> np.ndarray:
        """The rows of files of these numbers, int64: none of those that there are not, and without
        end where that is not known."""
        unknown = np.iinfo(np.int64).max if self.rows_each is None else self.rows_each
        sizes = [
            self.ends.get(file, unknown) if file < self.files else 0 for file in files.tolist()
        ]
        return np.array(sizes, dtype=np.int64)


@dataclass(frozen=True)
class AccountedRows:
    """`held` are the rows that pieces hold; `twice` those that they hold a further time."""

    held: RowSet
    twice: list[Range]

    @classmethod
    def of(cls, pieces: Sequence[ManifestEntry]) -> AccountedRows:
        parted, shares = _parted(pieces)
        whole, over = parted[shares >= row_ids.FULL_SHARE], parted[shares > row_ids.FULL_SHARE]
        starts, stops = _ranges(pieces)
        held, twice = _merged(np.concatenate([starts, whole]), np.concatenate([stops, whole + 1]))
        part = [row for row in parted[shares < row_ids.FULL_SHARE].tolist() if held.has(row)]
        over = np.concatenate([over, np.array(part, dtype=np.int64)])
        return cls(held, sorted(twice + _named(over, over + 1)))

    @property
    def rows(self) -> int:
        """Rows that are held, each counted once."""
        return self.held.rows

    def gaps(self, sizes: Sizes) -> MissingRows:
        """Rows of the input that are not held."""
        return self.held.gaps(sizes.files, sizes.ends, sizes.rows_each)

    def beyond(self, sizes: Sizes) -> list[Range]:
        """Rows that are held and that the input does not have."""
        files, firsts = row_ids.unpack(self.held.starts)
        base = files << row_ids.ROW_BITS
        ends = sizes.of(files)
        over = self.held.stops - base > ends
        starts = base + np.maximum(firsts, np.minimum(ends, self.held.stops - base))
        return _named(starts[over], self.held.stops[over])


def _merged(starts: np.ndarray, stops: np.ndarray) -> tuple[RowSet, list[Range]]:
    """Ranges of ids in any order as what they hold together, and what they hold a further time."""
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], stops[order]
    reach = np.maximum.accumulate(stops) if len(stops) else stops
    before = np.concatenate([[-1], reach])[: len(starts)]
    again, first = starts < before, np.flatnonzero(starts > before)
    last = np.append(first[1:], len(starts))[: len(first)] - 1
    twice = _named(starts[again], np.minimum(stops, before)[again])
    return RowSet(starts[first], reach[last]), twice


def _parted(pieces: Sequence[ManifestEntry]) -> tuple[np.ndarray, np.ndarray]:
    """Ids of rows in parts, and how much of each is there."""
    sums: Counter[int] = Counter()
    for piece in pieces:
        for file, row, share in piece.shares:
            sums[row_ids.pack(file, row)] += share
    return np.array([*sums], dtype=np.int64), np.array([*sums.values()], dtype=np.int64)


def _ranges(pieces: Sequence[ManifestEntry]) -> tuple[np.ndarray, np.ndarray]:
    """Ranges of whole rows: first ids, and ids after the last."""
    flat = np.array([each for piece in pieces for each in piece.ranges], dtype=np.int64)
    flat = flat.reshape(-1, 3)
    base = flat[:, 0] << row_ids.ROW_BITS
    return base + flat[:, 1], base + flat[:, 2]


def _named(starts: np.ndarray, stops: np.ndarray) -> list[Range]:
    files, firsts = row_ids.unpack(starts)
    after = stops - (files << row_ids.ROW_BITS)
    return list(zip(files.tolist(), firsts.tolist(), after.tolist(), strict=True))
