"""Groups rows of similar length into batches, which reduces padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def padded(length: int, multiple: int | None, limit: int) -> int:
    """Return the length rounded up to a multiple, but not beyond the limit of the model."""
    if multiple is None:
        return length
    return max(length, min(-(-length // multiple) * multiple, limit))


def buckets(
    lengths: Sequence[int], most_tokens: int | None, multiple: int | None, limit: int
) -> list[np.ndarray]:
    """Return groups of row numbers, sorted by length.

    The number of rows in a group times its longest padded length is at most `most_tokens`. A row
    that exceeds this limit is in a group of its own. Without `most_tokens`, one group holds all
    rows in their order.
    """
    if most_tokens is None:
        return [np.arange(len(lengths))]
    order = np.argsort(lengths, kind="stable")
    groups: list[np.ndarray] = []
    start = 0
    for end in range(1, len(order) + 1):
        more = end + 1 - start
        if end == len(order) or more * padded(lengths[order[end]], multiple, limit) > most_tokens:
            groups.append(order[start:end])
            start = end
    return groups
