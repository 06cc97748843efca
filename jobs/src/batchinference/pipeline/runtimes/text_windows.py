"""The windows of texts that are too long for a model, and the mean of their results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from batchinference.pipeline.text_spans import Span


@dataclass(frozen=True)
class Windows:
    """The windows of the texts of a batch, in the order of the texts."""

    texts: list[str]
    spans: list[Span]
    owners: np.ndarray
    """The index of the text of each window (int64)."""

    def averages(self, results: np.ndarray) -> np.ndarray:
        """Return the mean of the results of the windows of each text, weighted by their numbers of
        tokens. `results` are windows x any shape."""
        weights = np.array([max(1, span.units) for span in self.spans], dtype=np.float64)
        first = np.flatnonzero(np.diff(self.owners, prepend=-1))
        shape = (-1, *[1] * (results.ndim - 1))
        sums = np.add.reduceat(results * weights.reshape(shape), first, axis=0)
        means = sums / np.add.reduceat(weights, first).reshape(shape)
        return np.asarray(means, dtype=results.dtype)

    def groups(self) -> Iterator[slice]:
        """Yield the windows of each text."""
        first = np.flatnonzero(np.diff(self.owners, prepend=-1)).tolist()
        return (slice(*pair) for pair in zip(first, [*first[1:], len(self.owners)], strict=True))
