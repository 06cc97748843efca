"""The rows of a write task, and which of them count together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline import row_ids
from batchinference.pipeline.commit.manifest import ranges_of
from batchinference.pipeline.commit.manifest_entry import Range, RowCounts, Share

MAX_PARTIAL_ROWS = 16
"""Maximum number of partial rows of a task that get a manifest entry each. If there are more, they
share one entry. This saves files, but all of these rows are processed again if the other part of
one is missing."""


@dataclass(frozen=True)
class TaskOutcome:
    """Rows with ids, grouped by outcome."""

    good: pa.Table
    failed: pa.Table
    skipped: pa.Table

    @classmethod
    def of(cls, good: pa.Table, rest: pa.Table | None) -> TaskOutcome:
        """Return the outcome of a task. `rest` holds all of its rows that are not good."""
        others = pa.table({row_ids.ID: pa.array([], pa.int64())})
        if rest is None:
            return cls(good, others, others)
        states = rest.column(row_ids.STATE)
        failed, skipped = (
            rest.filter(pc.equal(states, state)) for state in (row_ids.FAILED, row_ids.SKIPPED)
        )
        return cls(good, failed, skipped)

    @property
    def counts(self) -> RowCounts:
        """The number of whole input rows, and of all rows with each outcome."""
        tables = (self.good, self.failed, self.skipped)
        return RowCounts(len(self._whole_ids), *(table.num_rows for table in tables))

    @property
    def row_ranges(self) -> list[Range]:
        return ranges_of(self._whole_ids)

    @property
    def shares(self) -> list[Share]:
        """The rows of which this task holds only a part."""
        unique, sums = self._sums()
        files, numbers = row_ids.unpack(unique[sums != row_ids.FULL_SHARE])
        parts = sums[sums != row_ids.FULL_SHARE]
        return list(zip(files.tolist(), numbers.tolist(), parts.tolist(), strict=True))

    def groups(self) -> Iterator[TaskOutcome]:
        """Yield groups of rows that count together: most of the rows; rows of which a part has
        failed; and rows of which this task holds only a part."""
        unique, sums = self._sums()
        if not len(unique):
            return
        parted = sums != row_ids.FULL_SHARE
        mixed = self._mixed(unique)
        lots = [unique[~parted & ~mixed], unique[~parted & mixed], *_apart(unique[parted])]
        lots = [lot for lot in lots if len(lot)]
        yield from [self] if len(lots) == 1 else map(self._only, lots)

    def _mixed(self, ids: np.ndarray) -> np.ndarray:
        """Return which ids (bool) have failed in part: some of the rows that an input row became
        have failed, and others have not."""
        if not self.failed.num_rows:
            return np.zeros(len(ids), bool)
        others = np.concatenate([row_ids.ids_of(self.good), row_ids.ids_of(self.skipped)])
        mixed: np.ndarray = np.isin(ids, others) & np.isin(ids, row_ids.ids_of(self.failed))
        return mixed

    @property
    def _whole_ids(self) -> np.ndarray:
        unique, sums = self._sums()
        whole: np.ndarray = unique[sums == row_ids.FULL_SHARE]
        return whole

    def _sums(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids without duplicates, and the sum of the shares of each id in this task."""
        tables = (self.good, self.failed, self.skipped)
        ids = np.concatenate([row_ids.ids_of(table) for table in tables])
        if not any(row_ids.SHARE in table.column_names for table in tables):
            return ids, np.full(len(ids), row_ids.FULL_SHARE)
        unique, places = np.unique(ids, return_inverse=True)
        sums = np.zeros(len(unique), dtype=np.int64)
        np.add.at(sums, places, np.concatenate([_filled(table) for table in tables]))
        return unique, sums

    def _only(self, ids: np.ndarray) -> TaskOutcome:
        tables = (self.good, self.failed, self.skipped)
        chosen = (table.filter(pa.array(np.isin(row_ids.ids_of(table), ids))) for table in tables)
        return TaskOutcome(*chosen)


def _apart(ids: np.ndarray) -> list[np.ndarray]:
    return np.split(ids, len(ids)) if 0 < len(ids) <= MAX_PARTIAL_ROWS else [ids]


def _filled(table: pa.Table) -> np.ndarray:
    shares = row_ids.shares_of(table)
    return np.full(table.num_rows, row_ids.FULL_SHARE) if shares is None else shares
