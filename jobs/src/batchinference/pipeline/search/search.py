"""Finds the nearest rows of an index in one pass over its embeddings, block by block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.search.index import Index
from batchinference.pipeline.search.topk import (
    NOBODY,
    TopK,
    is_usable,
    lengths_of,
)

BLOCK_BYTES = 16 << 20
"""Target bytes of a block's values, and of its products with all queries, as float32."""
MIN_BLOCK_ROWS, MAX_BLOCK_ROWS = 256, 16384


@dataclass(frozen=True)
class Choice:
    """Restricts which rows can be found. `mask` is true for them and is computed from `columns`."""

    columns: list[str]
    mask: Callable[[pa.Table], pa.ChunkedArray]


@dataclass(frozen=True)
class Found:
    """The k best rows for each of m queries, as arrays of m x k, best first, as in TopK."""

    similarities: np.ndarray
    rows: np.ndarray
    passed_over: int
    """Number of rows that were skipped: they have no embedding, or it is zero or not finite."""

    def of(self, query: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the similarities and row numbers of one query, without empty places."""
        there = self.rows[query] != NOBODY
        return self.similarities[query][there], self.rows[query][there]


def search(index: Index, queries: np.ndarray, k: int, choice: Choice | None = None) -> Found:
    """Return the rows most similar to each query (m x width).

    Raises BadInput if the index has embeddings of another width.
    """
    best = TopK(queries, k)
    count, width = queries.shape
    block_rows = max(MIN_BLOCK_ROWS, min(MAX_BLOCK_ROWS, BLOCK_BYTES // (4 * max(width, count))))
    columns = list(dict.fromkeys([index.column, *(choice.columns if choice else [])]))
    nulls = 0
    for first, batch in index.batches(columns, block_rows):
        rows, column = _chosen(first, batch, choice), batch.column(index.column)
        if len(rows) < batch.num_rows:
            column = column.take(pa.array(rows - first))
        there = column.is_valid().to_numpy()
        nulls += len(there) - int(there.sum())
        best.add(_matrix(index, column, rows[there], width), rows[there])
    return Found(best.similarities, best.rows, nulls + best.passed_over)


def _chosen(first: int, batch: pa.Table, choice: Choice | None) -> np.ndarray:
    """Return the numbers of the rows of a batch that can be found."""
    if choice is None:
        return np.arange(first, first + batch.num_rows)
    chosen: np.ndarray = pc.fill_null(choice.mask(batch), False).to_numpy()
    return first + np.flatnonzero(chosen)


def _matrix(index: Index, column: pa.ChunkedArray, rows: np.ndarray, width: int) -> np.ndarray:
    try:
        return matrix_of(column, width)
    except WrongWidth as wrong:
        raise BadInput(
            f"row {rows[wrong.place]} of '{index.output.uri}' has {wrong.width} numbers in column "
            f"'{index.column}' where the query has {width}: they do not come of the same model"
        ) from None


class WrongWidth(ValueError):
    """A list has the wrong length. `place` is its index among the lists that are not null."""

    def __init__(self, place: int, width: int, wanted: int) -> None:
        super().__init__(f"{width} numbers where there must be {wanted}")
        self.place = place
        self.width = width


def matrix_of(column: pa.ChunkedArray, width: int) -> np.ndarray:
    """Return the lists that are not null as rows x width. A number that is null becomes NaN.

    Raises WrongWidth if a list has another length.
    """
    lists = column.drop_null().combine_chunks()
    lengths = pc.list_value_length(lists).to_numpy()
    wrong = np.flatnonzero(lengths != width)
    if len(wrong):
        raise WrongWidth(int(wrong[0]), int(lengths[wrong[0]]), width)
    numbers: np.ndarray = lists.flatten().to_numpy(zero_copy_only=False)
    return numbers.reshape(len(lists), width)


def one_embedding(column: pa.ChunkedArray, what: str) -> np.ndarray:
    """Return the only embedding of a column, 1 x width.

    Raises BadInput if it is null, zero or not finite, because nothing is similar to it then."""
    if column.null_count == 0:
        matrix = matrix_of(column, len(column[0]))
        if is_usable(lengths_of(matrix)).all():
            return matrix
    raise BadInput(f"{what} has no embedding, or one of zeros: nothing is like it")
