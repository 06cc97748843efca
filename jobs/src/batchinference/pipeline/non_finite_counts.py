"""Counts the NaN and infinite values in columns."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from batchinference.pipeline.type_widening import is_list


class NonFiniteOutput(ValueError):
    """The output of a row contains NaN or infinity."""

    def __init__(self, values: int) -> None:
        super().__init__(
            f"the output has {values} values that are NaN or infinity. Use another dtype such as "
            "float32, or set the model's field nonFinite to keep"
        )


def non_finite_values(table: pa.Table) -> dict[int, int]:
    """Return the number of NaN and infinite values of each row that has any, by row index."""
    rows: Counter[int] = Counter()
    for column in table.columns:
        start = 0
        for chunk in column.chunks:
            if (counts := _counts(chunk)) is not None:
                rows.update({start + int(row): int(counts[row]) for row in np.flatnonzero(counts)})
            start += len(chunk)
    return dict(rows)


def _counts(array: pa.Array) -> np.ndarray | None:
    """Return the number of non-finite values of each row, except in maps; None if there are
    none."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _counts(array.storage)
    if kinds.is_floating(kind):
        finite = pc.is_finite(array)
        if pc.all(finite).as_py() is not False:  # nulls are skipped
            return None
        return np.asarray(pc.fill_null(pc.invert(finite), False).to_numpy(zero_copy_only=False))
    if kinds.is_struct(kind):
        counts = [count for child in array.flatten() if (count := _counts(child)) is not None]
        return np.sum(counts, axis=0) if counts else None
    return _counts_in_lists(array) if is_list(kind) else None


def _counts_in_lists(lists: pa.Array) -> np.ndarray | None:
    counts = _counts(lists.flatten())  # `flatten` skips the elements of null lists
    if counts is None:
        return None
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    sums = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    ends = np.cumsum(lengths, dtype=np.int64)
    return np.asarray(sums[ends] - sums[ends - lengths])
