"""Finds the nearest rows of an index in one pass over its embeddings, block by block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.search.index import Index

BLOCK_BYTES = 16 << 20
"""Target bytes of a block's values, and of its products with all queries, as float32."""
MIN_BLOCK_ROWS, MAX_BLOCK_ROWS = 256, 16384


@dataclass(frozen=True)
class RowFilter:
    """Restricts a search to the rows for which `mask` is true. It is computed from `columns`."""

    columns: list[str]
    mask: Callable[[pa.Table], pa.ChunkedArray]


@dataclass(frozen=True)
class Found:
    """The k best rows for each of m queries, as arrays of m x k, best first, as in TopK."""

    similarities: np.ndarray
    rows: np.ndarray
    skipped: int
    """Number of rows that were skipped: they have no embedding, or it is zero or not finite."""

    def of(self, query: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the similarities and row numbers of one query, without placeholders."""
        exists = self.rows[query] != NO_ROW
        return self.similarities[query][exists], self.rows[query][exists]


def search(index: Index, queries: np.ndarray, k: int, row_filter: RowFilter | None = None) -> Found:
    """Return the rows most similar to each query (m x width).

    Raises BadInput if the index has embeddings of another width.
    """
    best = TopK(queries, k)
    count, width = queries.shape
    block_rows = max(MIN_BLOCK_ROWS, min(MAX_BLOCK_ROWS, BLOCK_BYTES // (4 * max(width, count))))
    columns = list(dict.fromkeys([index.column, *(row_filter.columns if row_filter else [])]))
    nulls = 0
    for first, batch in index.batches(columns, block_rows):
        rows, column = _chosen(first, batch, row_filter), batch.column(index.column)
        if len(rows) < batch.num_rows:
            column = column.take(pa.array(rows - first))
        valid = column.is_valid().to_numpy()
        nulls += len(valid) - int(valid.sum())
        best.add(_matrix(index, column, rows[valid], width), rows[valid])
    return Found(best.similarities, best.rows, nulls + best.skipped)


def _chosen(first: int, batch: pa.Table, row_filter: RowFilter | None) -> np.ndarray:
    """Return the numbers of the rows of a batch that can be found."""
    if row_filter is None:
        return np.arange(first, first + batch.num_rows)
    chosen: np.ndarray = pc.fill_null(row_filter.mask(batch), False).to_numpy()
    return first + np.flatnonzero(chosen)


def _matrix(index: Index, column: pa.ChunkedArray, rows: np.ndarray, width: int) -> np.ndarray:
    """Return the embeddings of these rows. Raises BadInput if one has another width."""
    lengths = pc.list_value_length(column.drop_null()).to_numpy()
    wrong = np.flatnonzero(lengths != width)
    if len(wrong):
        raise BadInput(
            f"row {rows[wrong[0]]} of '{index.output.uri}' has {lengths[wrong[0]]} numbers in "
            f"column '{index.column}' where the query has {width}: they are not from the same model"
        )
    return matrix_of(column, width)


def matrix_of(column: pa.ChunkedArray, width: int) -> np.ndarray:
    """Return the lists that are not null, each of `width` numbers, as rows x width. A number that
    is null becomes NaN."""
    lists = column.drop_null().combine_chunks()
    numbers: np.ndarray = lists.flatten().to_numpy(zero_copy_only=False)
    return numbers.reshape(len(lists), width)


def one_embedding(column: pa.ChunkedArray, what: str) -> np.ndarray:
    """Return the only embedding of a column, 1 x width.

    Raises BadInput if it is null, zero or not finite, because nothing is similar to it then."""
    if column.null_count == 0:
        matrix = matrix_of(column, len(column[0]))
        if is_usable(lengths_of(matrix)).all():
            return matrix
    raise BadInput(f"{what} has no embedding, or a zero vector, which is similar to nothing")


NO_ROW = -1
"""Placeholder for a row number where fewer than k rows were found."""


class TopK:
    """The best rows so far for each of m queries.

    `similarities` (float32) and `rows` (int64) are m x k, best first. If fewer than k rows were
    seen, they end with -inf and NO_ROW. `skipped` counts the rows that are zero or not
    finite, and therefore have no direction.
    """

    def __init__(self, queries: np.ndarray, k: int) -> None:
        """`queries` is m x width. Raises ValueError if one of them is unusable."""
        lengths = lengths_of(queries)
        if not is_usable(lengths).all():
            raise ValueError("a query that is zero or not finite has no direction")
        self._queries = (queries / lengths[:, None]).astype(np.float32)
        self.similarities = np.full((len(queries), k), -np.inf, np.float32)
        self.rows = np.full((len(queries), k), NO_ROW, np.int64)
        self.skipped = 0

    def add(self, embeddings: np.ndarray, rows: np.ndarray) -> None:
        """Add a block of n x width embeddings and their row numbers.

        The row numbers must be higher than those of earlier blocks. Rows that are zero or not
        finite are skipped.
        """
        similarities = self._similarities(embeddings)
        threshold = np.maximum(self.similarities[:, -1], self._kth_best(similarities))
        query, column = np.nonzero((similarities >= threshold[:, None]) & np.isfinite(similarities))
        if len(query):
            self._merge(query, similarities[query, column], rows[column])

    def _similarities(self, embeddings: np.ndarray) -> np.ndarray:
        """Return similarities of m x n, with -inf for rows without a direction."""
        lengths = lengths_of(embeddings)
        usable = is_usable(lengths)
        with np.errstate(all="ignore"):  # caused by unusable rows
            products: np.ndarray = self._queries @ embeddings.astype(np.float32, copy=False).T
            products /= lengths.astype(np.float32)
        np.clip(products, -1, 1, out=products)
        products[:, ~usable] = -np.inf
        self.skipped += len(usable) - int(usable.sum())
        return products

    def _kth_best(self, similarities: np.ndarray) -> np.ndarray | float:
        """Return for each query the similarity that a row needs to be among this block's k best."""
        k = self.rows.shape[1]
        if similarities.shape[1] <= k:
            return -np.inf
        kth: np.ndarray = np.partition(similarities, -k, axis=1)[:, -k]
        return kth

    def _merge(self, query: np.ndarray, similarities: np.ndarray, rows: np.ndarray) -> None:
        count, k = self.rows.shape
        query = np.concatenate([np.repeat(np.arange(count), k), query])
        similarities = np.concatenate([self.similarities.ravel(), similarities])
        rows = np.concatenate([self.rows.ravel(), rows])
        order = np.lexsort((rows, -similarities, query))
        starts = np.searchsorted(query[order], np.arange(count))
        best = order[starts[:, None] + np.arange(k)]
        self.similarities, self.rows = similarities[best], rows[best]


def lengths_of(vectors: np.ndarray) -> np.ndarray:
    """Return the Euclidean length of each row as float64, in which no float32 overflows."""
    with np.errstate(all="ignore"):
        squares = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)
        lengths: np.ndarray = np.sqrt(squares)
    return lengths


def is_usable(lengths: np.ndarray) -> np.ndarray:
    """Return whether vectors of these lengths have a direction, within the range of float32."""
    limits = np.finfo(np.float32)
    usable: np.ndarray = (lengths >= limits.tiny) & (lengths <= limits.max)
    return usable
