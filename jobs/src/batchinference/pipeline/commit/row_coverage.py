"""Determines which manifest entries are valid, and which rows of the input are missing.

The row ids (see `row_batch`) of a file are consecutive integers. Sets of rows are stored as ranges
of ids, which need little memory even for many rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.row_batch import (
    FULL_SHARE,
    NO_IDS,
    ROW_BITS,
    ROW_MASK,
    MissingRows,
    RowRange,
    pack_id,
)

SHOWN = 3
"""Number of missing row ranges in a message."""


def resolve_overlaps(entries: Sequence[ManifestEntry]) -> list[ManifestEntry]:
    """Return the valid manifest entries. The rows of invalid entries are processed again.

    An entry is invalid if it has a row twice, or a row of an earlier valid entry. An entry with a
    part of a row is invalid if another part of the row is missing.

      rows 0 to 9, rows 5 to 14, rows 10 to 14 -> the first and the third entry are valid"""
    valid = _drop_overlapping([entry for entry in entries if not entry.shares])
    rows = RowSet.of(valid)
    return [*valid, *_keep_complete_rows([entry for entry in entries if entry.shares], rows)]


def _drop_overlapping(entries: list[ManifestEntry]) -> list[ManifestEntry]:
    """Return the valid entries among entries without split rows."""
    overlapping = _overlapping(entries)
    if not overlapping:
        return entries
    id_ranges = [edges([entries[index]])[:2] for index in overlapping]
    points = np.unique(np.concatenate([NO_IDS, *(ids for pair in id_ranges for ids in pair)]))
    is_covered = np.zeros(len(points), dtype=bool)
    """For each point, whether a valid entry has the rows from this point to the next."""
    dropped = set()
    for index, pair in zip(overlapping, id_ranges, strict=True):
        positions = zip(*(np.searchsorted(points, ids).tolist() for ids in pair), strict=True)
        intervals = np.concatenate([np.arange(first, after) for first, after in positions])
        if is_covered[intervals].any() or len(np.unique(intervals)) < len(intervals):
            dropped.add(index)
        else:
            is_covered[intervals] = True
    return [entry for index, entry in enumerate(entries) if index not in dropped]


def _overlapping(entries: Sequence[ManifestEntry]) -> list[int]:
    """Return the sorted indexes of entries that have a row twice, or a row of another entry."""
    starts, stops, owners = edges(entries)
    order = np.argsort(starts, kind="stable")
    starts, stops, owners = starts[order], stops[order], owners[order]
    reach = np.maximum.accumulate(stops) if len(stops) else stops
    after, before = starts[1:] < reach[:-1], starts[1:] < stops[:-1]
    return sorted({*owners[1:][after].tolist(), *owners[:-1][before].tolist()})


def edges(entries: Sequence[ManifestEntry]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the edges of all row ranges as three arrays (int64). These are the first ids, the ids
    after the last rows, and the indexes of the entries."""
    counts = [len(entry.row_ranges) for entry in entries]
    flat = np.array(
        [edge for entry in entries for range_ in entry.row_ranges for edge in range_],
        dtype=np.int64,
    ).reshape(-1, 3)
    base = flat[:, 0] << ROW_BITS
    return base | flat[:, 1], base + flat[:, 2], np.repeat(np.arange(len(entries)), counts)


def _keep_complete_rows(entries: list[ManifestEntry], others: RowSet) -> list[ManifestEntry]:
    """Return the entries whose split rows are all complete, and none of them is in `others`."""
    rows, shares = summed_shares(entries)
    invalid = rows[(shares != FULL_SHARE) | others.contains(rows)].tolist()
    owners: dict[int, set[int]] = defaultdict(set)
    for index, row in ((i, row) for i, entry in enumerate(entries) for row in _split_rows(entry)):
        owners[row].add(index)
    dropped: set[int] = set()
    while invalid:
        new = owners.pop(invalid.pop(), set()) - dropped
        dropped |= new  # without an entry, its other split rows are incomplete
        invalid += [row for index in new for row in _split_rows(entries[index])]
    return [entry for index, entry in enumerate(entries) if index not in dropped]


def summed_shares(entries: Sequence[ManifestEntry]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of the split rows of the entries, and the sums of their shares (int64)."""
    sums: dict[int, int] = defaultdict(int)
    for entry in entries:
        for file, row, share in entry.shares:
            sums[pack_id(file, row)] += share
    return np.array([*sums], dtype=np.int64), np.array([*sums.values()], dtype=np.int64)


def _split_rows(entry: ManifestEntry) -> list[int]:
    return [pack_id(file, row) for file, row, _ in entry.shares]


@dataclass(frozen=True)
class RowSet:
    """A set of rows, as sorted ranges of ids. No two ranges touch."""

    starts: np.ndarray
    stops: np.ndarray

    @classmethod
    def of(cls, entries: Sequence[ManifestEntry]) -> RowSet:
        """Return the rows of valid entries (see `resolve_overlaps`)."""
        starts, stops, _ = edges(entries)
        ids = sorted({id_ for entry in entries for id_ in _split_rows(entry)})
        split = np.array(ids, dtype=np.int64)
        return cls.merged(np.append(starts, split), np.append(stops, split + 1))

    @classmethod
    def merged(cls, starts: np.ndarray, stops: np.ndarray) -> RowSet:
        """Return the rows in ranges of ids, which may overlap and have any order."""
        order = np.argsort(starts, kind="stable")
        starts, reach = starts[order], np.maximum.accumulate(stops[order])
        first = np.flatnonzero(starts > np.append(-1, reach)[:-1])
        last = np.append(first[1:], len(starts))[: len(first)] - 1
        return cls(starts[first], reach[last])

    @property
    def rows(self) -> int:
        """The number of rows in the set."""
        return int((self.stops - self.starts).sum())

    def contains(self, ids: np.ndarray) -> np.ndarray:
        """Return a mask (bool) of the ids (int64) that are in the set."""
        ranges = np.searchsorted(self.starts, ids, side="right") - 1
        stops = np.append(self.stops, 0)  # the 0 is for ids before the first range
        return np.asarray(ids < stops[ranges])

    def has_rows_from(self, file: int, row: int) -> bool:
        """Return whether the set has this row or a later row of a file."""
        index = np.searchsorted(self.stops, pack_id(file, row), side="right")
        return bool(index < len(self.starts) and self.starts[index] < pack_id(file + 1, 0))

    def possible_ends(self, ends: Mapping[int, int]) -> dict[int, int]:
        """Return the possible entries of `ends`, which maps files to their numbers of rows. An
        entry is impossible if the set has a later row of the file."""
        files = self.starts >> ROW_BITS
        last = np.flatnonzero(np.diff(files, append=-1))
        stops = dict(zip(files[last].tolist(), (self.stops[last] & ROW_MASK).tolist(), strict=True))
        return {file: end for file, end in ends.items() if end >= stops.get(file, 0)}

    def missing(
        self, files: int, ends: Mapping[int, int], rows_each: int | None = None
    ) -> MissingRows:
        """Return the rows of an input of `files` files that are not in the set. `ends` has the
        number of rows of each file that was read to its end. `rows_each` is the number of rows of
        every file, if that is known in advance."""
        edges = np.searchsorted(self.starts >> ROW_BITS, np.arange(files + 1))
        missing: MissingRows = {}
        for file in self._unfinished(edges, ends, rows_each).tolist():
            ranges = slice(int(edges[file]), int(edges[file + 1]))
            base = file << ROW_BITS
            pairs = list(zip((self.starts[ranges] - base).tolist(),
                            (self.stops[ranges] - base).tolist(), strict=True))  # fmt: skip
            if gaps := _gaps_between(pairs, ends.get(file, rows_each)):
                missing[file] = gaps
        return missing

    def _unfinished(
        self, edges: np.ndarray, ends: Mapping[int, int], rows_each: int | None
    ) -> np.ndarray:
        """Return the numbers (int64) of the files that no single range covers completely. `edges`
        has the index of the first range of each file."""
        files = len(edges) - 1
        sizes = np.full(files, -1 if rows_each is None else rows_each, dtype=np.int64)
        if ends:
            sizes[np.fromiter(ends.keys(), np.int64)] = np.fromiter(ends.values(), np.int64)
        single = np.flatnonzero(np.diff(edges) == 1)
        base = single << ROW_BITS
        ranges = edges[single]
        covered = (self.starts[ranges] == base) & (self.stops[ranges] == base + sizes[single])
        unfinished = np.ones(files, dtype=bool)
        unfinished[single[covered]] = False
        return np.flatnonzero(unfinished)


def rows_in_all(files: int, ends: Mapping[int, int], rows_each: int | None) -> int:
    """Return the number of rows of an input of `files` files. Files that are not in `ends` have
    `rows_each` rows. The number in `ends` is 0, for example, for a removed file."""
    if rows_each is None:
        return sum(ends.values())
    return files * rows_each + sum(rows - rows_each for rows in ends.values())


def _gaps_between(ranges: list[tuple[int, int]], end: int | None) -> list[RowRange]:
    """Return the row ranges of a file before, between and after `ranges`. `end` is the number of
    rows of the file; None if it is unknown."""
    gaps: list[RowRange] = []
    expected = 0
    for first, after in ranges:
        if first > expected:
            gaps.append((expected, first))
        expected = after
    if end is None:
        gaps.append((expected, None))
    elif expected < end:
        gaps.append((expected, end))
    return gaps


def common_rows(missing: MissingRows | None, wanted: MissingRows) -> MissingRows:
    """Return the rows that are in both arguments. `missing` None means all rows."""
    common: MissingRows = {}
    for file, ranges in wanted.items():
        gaps = [(0, None)] if missing is None else missing.get(file, [])
        both = [
            (max(first, start), stop if after is None else min(after, stop or after))
            for first, after in gaps
            for start, stop in ranges
        ]
        if rows := [(first, after) for first, after in both if after is None or first < after]:
            common[file] = rows
    return common


def format_missing_rows(gaps: MissingRows) -> str:
    """Return a description of the first missing row ranges."""
    shown = [
        f"all rows of file {file} from {first} on"
        if after is None
        else f"rows {first} to {after - 1} of file {file}"
        for file, ranges in gaps.items()
        for first, after in ranges
    ]
    more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    return "; ".join(shown[:SHOWN]) + more
