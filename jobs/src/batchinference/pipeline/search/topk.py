"""Finds the k rows with the highest cosine similarity to each query in a stream of blocks.

Only k rows per query are kept, whatever the number of rows. If rows are equally similar, the
earlier one wins. The result therefore does not depend on how the rows are split into blocks.
"""

from __future__ import annotations

import numpy as np

NOBODY = -1
"""Placeholder for a row number where fewer than k rows were found."""


class TopK:
    """The best rows so far for each of m queries.

    `similarities` (float32) and `rows` (int64) are m x k, best first. If fewer than k rows were
    seen, they end with -inf and NOBODY. `passed_over` counts the skipped rows: those that are zero
    or not finite, and therefore have no direction.
    """

    def __init__(self, queries: np.ndarray, k: int) -> None:
        """`queries` is m x width. Raises ValueError if one of them is unusable."""
        lengths = lengths_of(queries)
        if not is_usable(lengths).all():
            raise ValueError("a query that is zero or not finite has no direction")
        self._queries = (queries / lengths[:, None]).astype(np.float32)
        self.similarities = np.full((len(queries), k), -np.inf, np.float32)
        self.rows = np.full((len(queries), k), NOBODY, np.int64)
        self.passed_over = 0

    def add(self, embeddings: np.ndarray, rows: np.ndarray) -> None:
        """Add a block of n x width embeddings and their row numbers.

        The row numbers must be higher than those of earlier blocks. Rows that are zero or not
        finite are skipped.
        """
        similarities = self._similarities(embeddings)
        enough = np.maximum(self.similarities[:, -1], self._kth_best(similarities))
        query, column = np.nonzero((similarities >= enough[:, None]) & np.isfinite(similarities))
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
        self.passed_over += len(usable) - int(usable.sum())
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
