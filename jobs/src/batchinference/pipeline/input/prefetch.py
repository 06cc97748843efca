"""Work that begins before its turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

Begun = TypeVar("Begun")


def prefetch_one(pieces: Iterable[Begun]) -> Iterator[Begun]:
    """Pieces, each given out when the next one has begun. Making a piece is what begins it."""
    before: list[Begun] = []
    for piece in pieces:
        yield from before
        before = [piece]
    yield from before
