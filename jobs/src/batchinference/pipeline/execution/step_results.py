"""Applies a step to a batch and assigns ids and shares to the resulting rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from batchinference.pipeline import row_ids
from batchinference.pipeline.arrow import concat
from batchinference.pipeline.steps.base import Transform, TransformResult

ErrorRowFactory = Callable[[int, int, Exception], pa.Table]
"""Returns a failed row for a row's id, its share and its error."""


def apply_step(transform: Transform, good: pa.Table, set_aside: ErrorRowFactory) -> pa.Table:
    """Return the rows that a step makes of good rows, followed by failed and filtered rows."""
    changed = transform(good.select(row_ids.data_columns(good)))
    if isinstance(changed, pa.Table):
        return row_ids.with_own_columns(changed, good.column(row_ids.ID), row_ids.shares_of(good))
    return concat([_children(good, changed), *_others(good, changed, set_aside)])


def _children(good: pa.Table, changed: TransformResult) -> pa.Table:
    ids = pa.array(row_ids.ids_of(good)[changed.parents])
    shares = divide(row_ids.shares_of(good), changed.parents, good.num_rows)
    return row_ids.with_own_columns(changed.table, ids, shares)


def divide(shares: np.ndarray | None, parents: np.ndarray, count: int) -> np.ndarray | None:
    """Return the shares of child rows. The share of each of the `count` parents is divided exactly.

    The shares of the children add up to that of their parent. None if no row was divided."""
    children = np.bincount(parents, minlength=count)
    if shares is None:
        if children.max(initial=0) <= 1:
            return None
        shares = np.full(count, row_ids.FULL_SHARE, dtype=np.int64)
    least, rest = np.divmod(shares, np.maximum(children, 1))
    first = np.cumsum(children) - children
    place = np.arange(len(parents)) - first[parents]
    divided: np.ndarray = least[parents] + (place < rest[parents])
    return divided


def _others(good: pa.Table, changed: TransformResult, set_aside: ErrorRowFactory) -> list[pa.Table]:
    ids, shares = row_ids.ids_of(good), row_ids.shares_of(good)
    left_out = np.ones(good.num_rows, dtype=bool)
    left_out[changed.parents] = False
    left_out[list(changed.failed)] = False
    tables = []
    if left_out.any():
        tables.append(
            row_ids.skipped_rows(ids[left_out], None if shares is None else shares[left_out])
        )
    for number, error in sorted(changed.failed.items()):
        share = row_ids.FULL_SHARE if shares is None else int(shares[number])
        tables.append(set_aside(int(ids[number]), share, error))
    return tables
