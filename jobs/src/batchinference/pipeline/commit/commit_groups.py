"""Divides the rows of a commit into groups of input rows that count together or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from batchinference.pipeline import row_ids
from batchinference.pipeline.commit.manifest import ranges_of
from batchinference.pipeline.commit.manifest_entry import Range, RowCounts, Share
from batchinference.pipeline.row_batch import FULL_SHARE, RowBatch

MAX_PARTIAL_ROWS = 16
"""Maximum number of partial rows of a commit that get a manifest entry each. If there are more,
they share one entry. This saves files, but all of these rows are processed again if the other part
of one is missing."""


def commit_groups(batch: RowBatch) -> Iterator[RowBatch]:
    """Yield groups of rows that count together: most of the rows; rows of which a part has failed;
    and rows of which the batch holds only a part. Filtered rows whose input row is in another batch
    are counted in the first group."""
    if not len(batch.source) and not len(batch.filtered):
        return
    partial, mixed = _partial(batch), _partially_failed(batch)
    groups = [batch.source[~partial & ~mixed], batch.source[~partial & mixed]]
    groups = [ids for ids in (*groups, *_single(batch.source[partial])) if len(ids)]
    if len(groups) < 2:
        yield batch
        return
    elsewhere = batch.filtered[~np.isin(batch.filtered, batch.source)]
    first, *others = map(batch.only, groups)
    yield replace(first, filtered=np.concatenate([first.filtered, elsewhere]))
    yield from others


def counts_of_group(group: RowBatch) -> RowCounts:
    """Return the number of whole input rows, and of all rows with each outcome."""
    whole = int((~_partial(group)).sum())
    return RowCounts(whole, len(group.ids), group.errors.num_rows, len(group.filtered))


def row_ranges_of(group: RowBatch) -> list[Range]:
    """Return the ranges of the whole input rows."""
    return ranges_of(group.source[~_partial(group)])


def shares_of(group: RowBatch) -> list[Share]:
    """Return the input rows of which the group holds only a part."""
    partial = _partial(group)
    if group.shares is None or not partial.any():
        return []
    files, rows = row_ids.unpack(group.source[partial])
    shares = group.shares[partial]
    return list(zip(files.tolist(), rows.tolist(), shares.tolist(), strict=True))


def _partial(batch: RowBatch) -> np.ndarray:
    """Return which input rows (bool) the batch holds only a part of."""
    if batch.shares is None:
        return np.zeros(len(batch.source), dtype=bool)
    partial: np.ndarray = batch.shares != FULL_SHARE
    return partial


def _partially_failed(batch: RowBatch) -> np.ndarray:
    """Return which input rows (bool) have failed in part: some of the rows that an input row became
    have failed, and others have not."""
    failed = _failed_ids(batch)
    if not len(failed):
        return np.zeros(len(batch.source), dtype=bool)
    others = np.concatenate([batch.ids, batch.filtered])
    mixed: np.ndarray = np.isin(batch.source, others) & np.isin(batch.source, failed)
    return mixed


def _failed_ids(batch: RowBatch) -> np.ndarray:
    ids: np.ndarray = batch.errors.column("id").to_numpy()
    return ids


def _single(ids: np.ndarray) -> list[np.ndarray]:
    return np.split(ids, len(ids)) if 0 < len(ids) <= MAX_PARTIAL_ROWS else [ids]
