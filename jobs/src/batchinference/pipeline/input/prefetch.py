"""Starts work before its result is needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

Begun = TypeVar("Begun")


def prefetch_one(pieces: Iterable[Begun]) -> Iterator[Begun]:
    """Yield each piece after the next one has started.

    The work on a piece starts when the iterable creates it."""
    before: list[Begun] = []
    for piece in pieces:
        yield from before
        before = [piece]
    yield from before
