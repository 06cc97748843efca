"""Determines which committed rows count, and which rows of the input are missing.

A row is identified by its id (see `row_batch`). The ids of the rows of a file are consecutive
integers. So row sets are stored as ranges, and memory use does not grow with the number of rows.
"""

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


def resolve_overlaps(entries: Sequence[ManifestEntry]) -> list[ManifestEntry]:
    """Return the manifest entries that count. If two entries hold the same row, the first one
    counts. If several entries hold parts of a row, all of them count or none. The rows of all other
    entries are processed again."""
    chosen = _drop_overlapping([entry for entry in entries if not entry.shares])
    held = RowSet.of(chosen)
    return [*chosen, *_keep_complete_rows([entry for entry in entries if entry.shares], held)]


def _drop_overlapping(entries: list[ManifestEntry]) -> list[ManifestEntry]:
    """Return the entries. Drop each entry that holds a row of an earlier returned entry."""
    contested = _overlapping(entries)
    if not contested:
        return entries
    of_contested = [edges([entries[number]])[:2] for number in contested]
    points = np.unique(np.concatenate([NO_IDS, *(ids for pair in of_contested for ids in pair)]))
    taken = np.zeros(len(points), dtype=bool)
    """Whether a returned entry holds the rows between a point and the next one."""
    dropped = set()
    for number, pair in zip(contested, of_contested, strict=True):
        places = zip(*(np.searchsorted(points, ids).tolist() for ids in pair), strict=True)
        held = np.concatenate([np.arange(first, after) for first, after in places])
        if taken[held].any() or len(np.unique(held)) < len(held):
            dropped.add(number)
        else:
            taken[held] = True
    return [entry for number, entry in enumerate(entries) if number not in dropped]


def _overlapping(entries: Sequence[ManifestEntry]) -> list[int]:
    """Return the indexes of the entries with a row that is held more than once, in order."""
    starts, stops, owners = edges(entries)
    order = np.argsort(starts, kind="stable")
    starts, stops, owners = starts[order], stops[order], owners[order]
    reach = np.maximum.accumulate(stops) if len(stops) else stops
    after, before = starts[1:] < reach[:-1], starts[1:] < stops[:-1]
    return sorted({*owners[1:][after].tolist(), *owners[:-1][before].tolist()})


def edges(entries: Sequence[ManifestEntry]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the row ranges of all entries: first ids, ids after the last, and indexes of the
    entries (int64)."""
    counts = [len(entry.row_ranges) for entry in entries]
    flat = np.array(
        [edge for entry in entries for edges in entry.row_ranges for edge in edges], dtype=np.int64
    ).reshape(-1, 3)
    base = flat[:, 0] << ROW_BITS
    return base | flat[:, 1], base + flat[:, 2], np.repeat(np.arange(len(entries)), counts)


def _keep_complete_rows(entries: list[ManifestEntry], held: RowSet) -> list[ManifestEntry]:
    """Return the entries whose partial rows have all their shares and are not in `held`."""
    while True:
        rows, shares = summed_shares(entries)
        bad = set(rows[(shares != FULL_SHARE) | held.holds(rows)].tolist())
        remaining = [entry for entry in entries if bad.isdisjoint(_partial_rows(entry))]
        if len(remaining) == len(entries):
            return remaining
        entries = remaining


def summed_shares(entries: Sequence[ManifestEntry]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of the rows of which the entries hold shares, and the sum of the shares of
    each row (int64)."""
    sums: dict[int, int] = defaultdict(int)
    for entry in entries:
        for file, row, share in entry.shares:
            sums[pack_id(file, row)] += share
    return np.array([*sums], dtype=np.int64), np.array([*sums.values()], dtype=np.int64)


def _partial_rows(entry: ManifestEntry) -> list[int]:
    return [pack_id(file, row) for file, row, _ in entry.shares]


@dataclass(frozen=True)
class RowSet:
    """The rows that manifest entries hold, as sorted ranges of ids. No two ranges touch."""

    starts: np.ndarray
    stops: np.ndarray

    @classmethod
    def of(cls, entries: Sequence[ManifestEntry]) -> RowSet:
        """Return the rows of entries that count (see `resolve_overlaps`)."""
        starts, stops, _ = edges(entries)
        partial = sorted({id_ for entry in entries for id_ in _partial_rows(entry)})
        parts = np.array(partial, dtype=np.int64)
        return cls.merged(np.append(starts, parts), np.append(stops, parts + 1))

    @classmethod
    def merged(cls, starts: np.ndarray, stops: np.ndarray) -> RowSet:
        """Return the rows in ranges of ids. The ranges may overlap, in any order."""
        order = np.argsort(starts, kind="stable")
        starts, reach = starts[order], np.maximum.accumulate(stops[order])
        first = np.flatnonzero(starts > np.append(-1, reach)[:-1])
        last = np.append(first[1:], len(starts))[: len(first)] - 1
        return cls(starts[first], reach[last])

    @property
    def rows(self) -> int:
        return int((self.stops - self.starts).sum())

    def holds(self, ids: np.ndarray) -> np.ndarray:
        """Return which of the ids (int64) are in the set, as bool."""
        places = np.searchsorted(self.starts, ids, side="right") - 1
        stops = np.append(self.stops, 0)  # the place -1 means that the id is before the first range
        held: np.ndarray = ids < stops[places]
        return held

    def has_rows_from(self, file: int, row: int) -> bool:
        """Return whether the set has this row of a file, or a later one."""
        at = np.searchsorted(self.stops, pack_id(file, row), side="right")
        return bool(at < len(self.starts) and self.starts[at] < pack_id(file + 1, 0))

    def possible_ends(self, ends: Mapping[int, int]) -> dict[int, int]:
        """Return the ends (numbers of rows by file) after which the set has no row of the file."""
        of_files = self.starts >> ROW_BITS
        last = np.flatnonzero(np.diff(of_files, append=-1))
        held = zip(of_files[last].tolist(), (self.stops[last] & ROW_MASK).tolist(), strict=True)
        reach = dict(held)
        return {file: end for file, end in ends.items() if end >= reach.get(file, 0)}

    def missing(
        self, files: int, ends: Mapping[int, int], rows_each: int | None = None
    ) -> MissingRows:
        """Return the missing rows of an input of `files` files. `ends` maps each file whose end was
        seen to its number of rows. `rows_each` is the number of rows of every file, if that is
        known in advance."""
        of_files = self.starts >> ROW_BITS
        edges = np.searchsorted(of_files, np.arange(files + 1))
        found: MissingRows = {}
        for file in self._unfinished(edges, ends, rows_each).tolist():
            ranges = slice(int(edges[file]), int(edges[file + 1]))
            base = file << ROW_BITS
            held = list(zip((self.starts[ranges] - base).tolist(),
                            (self.stops[ranges] - base).tolist(), strict=True))  # fmt: skip
            if gaps := _gaps_between(held, ends.get(file, rows_each)):
                found[file] = gaps
        return found

    def _unfinished(
        self, edges: np.ndarray, ends: Mapping[int, int], rows_each: int | None
    ) -> np.ndarray:
        """Return the files that are not covered by a single range from beginning to end."""
        files = len(edges) - 1
        sizes = np.full(files, -1 if rows_each is None else rows_each, dtype=np.int64)
        if ends:
            sizes[np.fromiter(ends.keys(), np.int64)] = np.fromiter(ends.values(), np.int64)
        single = np.flatnonzero(np.diff(edges) == 1)
        base = single << ROW_BITS
        places = edges[single]
        whole = (self.starts[places] == base) & (self.stops[places] == base + sizes[single])
        unfinished = np.ones(files, dtype=bool)
        unfinished[single[whole]] = False
        return np.flatnonzero(unfinished)


def rows_in_all(files: int, ends: Mapping[int, int], rows_each: int | None) -> int:
    """Return the number of rows of an input of `files` files: those in `ends`, which are all if
    `rows_each` is unknown. Files whose rows were removed have an end of 0."""
    if rows_each is None:
        return sum(ends.values())
    return files * rows_each + sum(rows - rows_each for rows in ends.values())


def _gaps_between(held: list[tuple[int, int]], end: int | None) -> list[RowRange]:
    """Return the row ranges between the held ranges and after the last one."""
    gaps: list[RowRange] = []
    expected = 0
    for first, after in held:
        if first > expected:
            gaps.append((expected, first))
        expected = after
    if end is None:
        gaps.append((expected, None))
    elif expected < end:
        gaps.append((expected, end))
    return gaps


def common_rows(missing: MissingRows | None, wanted: MissingRows) -> MissingRows:
    """Return the missing rows that are wanted. None means that all rows are missing."""
    found: MissingRows = {}
    for file, ranges in wanted.items():
        gaps = [(0, None)] if missing is None else missing.get(file, [])
        both = [
            (max(first, start), stop if after is None else min(after, stop or after))
            for first, after in gaps
            for start, stop in ranges
        ]
        if kept := [(first, after) for first, after in both if after is None or first < after]:
            found[file] = kept
    return found


def format_missing_rows(gaps: MissingRows) -> str:
    """Return a description of the first missing row ranges."""
    shown = [_describe_gap(file, gap) for file, found in gaps.items() for gap in found]
    more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    return "; ".join(shown[:SHOWN]) + more


def _describe_gap(file: int, gap: RowRange) -> str:
    first, after = gap
    if after is None:
        return f"rows of file {file} from {first} on, as far as is known"
    return f"rows {first} to {after - 1} of file {file}"
