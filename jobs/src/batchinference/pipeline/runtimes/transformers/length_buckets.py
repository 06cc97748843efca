"""Rows of like length together, so that little is computed for padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def padded(length: int, multiple: int | None, limit: int) -> int:
    """The length rounded up to a multiple, but never beyond the limit of the model."""
    if multiple is None:
        return length
    return max(length, min(-(-length // multiple) * multiple, limit))


def buckets(
    lengths: Sequence[int], most_tokens: int | None, multiple: int | None, limit: int
) -> list[np.ndarray]:
    """The numbers of the rows in groups: sorted by length, and cut where a group's rows times its
    longest, padded, would come to more than `most_tokens`. A row above that stands alone.

    Without `most_tokens`, all rows in their order.
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
