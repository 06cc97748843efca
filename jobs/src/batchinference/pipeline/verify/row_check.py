"""Determines which input rows the manifest entries hold, which they hold more than once, and which
error records are not of their rows.

A job uses only the entries that fit together (see `row_coverage`). This module uses all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batchinference.pipeline.commit.manifest import ManifestEntry, Range
from batchinference.pipeline.commit.retry_errors import ids_of
from batchinference.pipeline.commit.row_coverage import RowSet, edges
from batchinference.pipeline.row_batch import FULL_SHARE, ROW_BITS, MissingRows, pack_id, unpack_ids
from batchinference.pipeline.storage.arrow_files import read_table
from batchinference.pipeline.storage.location import Location


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
        starts, stops, _ = edges(entries)
        starts, stops = np.append(starts, whole), np.append(stops, whole + 1)
        held = RowSet.merged(starts, stops)
        part = [row for row in parted[shares < FULL_SHARE].tolist() if held.has(row)]
        over = np.concatenate([over, np.array(part, dtype=np.int64)])
        return cls(held, sorted(_repeated(starts, stops) + _named(over, over + 1)))

    @property
    def rows(self) -> int:
        """The number of held rows, each counted once."""
        return self.held.rows

    def missing(self, sizes: Sizes) -> MissingRows:
        """Return the rows of the input that are not held."""
        return self.held.missing(sizes.files, sizes.ends, sizes.rows_each)

    def beyond(self, sizes: Sizes) -> list[Range]:
        """Return the rows that are held but that the input does not have."""
        files, firsts = unpack_ids(self.held.starts)
        base = files << ROW_BITS
        ends = sizes.of(files)
        over = self.held.stops - base > ends
        starts = base + np.maximum(firsts, np.minimum(ends, self.held.stops - base))
        return _named(starts[over], self.held.stops[over])


def _repeated(starts: np.ndarray, stops: np.ndarray) -> list[Range]:
    """Return the rows that ranges of ids hold more than once."""
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], stops[order]
    before = np.append(-1, np.maximum.accumulate(stops))[:-1]
    again = starts < before
    return _named(starts[again], np.minimum(stops, before)[again])


def _parted(entries: Sequence[ManifestEntry]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of rows held in parts, and the sum of the shares of each row."""
    sums: Counter[int] = Counter()
    for entry in entries:
        for file, row, share in entry.shares:
            sums[pack_id(file, row)] += share
    return np.array([*sums], dtype=np.int64), np.array([*sums.values()], dtype=np.int64)


def _named(starts: np.ndarray, stops: np.ndarray) -> list[Range]:
    files, firsts = unpack_ids(starts)
    after = stops - (files << ROW_BITS)
    return list(zip(files.tolist(), firsts.tolist(), after.tolist(), strict=True))


def wrong_errors(entry: ManifestEntry, file: Location) -> int:
    """Return how many error records of a manifest entry are not among its rows, or are duplicates.

    Raises ArrowInvalid or OSError if the file cannot be read."""
    with file.open_input_file() as source:
        ids = ids_of(read_table(source, columns=["id"]))
    held = RowSet.of([entry])
    places = np.searchsorted(held.starts, ids, side="right") - 1
    inside = np.append(held.stops, 0)[places] > ids  # place -1 selects the appended 0
    repeated = len(ids) - len(np.unique(ids)) if _is_one_to_one(entry) else 0
    return int((~inside).sum()) + repeated


def _is_one_to_one(entry: ManifestEntry) -> bool:
    """Return whether no row has become several rows. These could all fail, with the same id."""
    counts = entry.counts
    return not entry.shares and counts.read == counts.written + counts.failed + counts.skipped
