"""Draws from a seed which faults are injected into which job, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from chaos.faults import FAULTS, Fault

Thing = TypeVar("Thing")
EARLY = 0.25
"""The share of jobs whose first fault comes before their first row."""


@dataclass(frozen=True)
class Injection:
    """A fault, `wait` seconds after the fault before it, or after the first row unless `early`."""

    fault: Fault
    wait: float
    seed: int
    early: bool = False


def plans(count: int, faults: int, seed: int) -> list[list[Injection]]:
    """Return the plans of `count` jobs, with `faults` injections each.

    Each kind of fault is drawn once before any is drawn again.
    """
    random = Random(seed)
    deck = drawn(random, FAULTS)
    return [list(_plan(deck, faults, random)) for _ in range(count)]


def _plan(deck: Iterator[Fault], faults: int, random: Random) -> Iterator[Injection]:
    early = random.random() < EARLY
    yield Injection(next(deck), random.uniform(0, 12), random.randrange(1 << 30), early)
    for _ in range(faults - 1):
        yield Injection(next(deck), random.uniform(1, 10), random.randrange(1 << 30))


def drawn(random: Random, things: Sequence[Thing]) -> Iterator[Thing]:
    """Yield things without end, each once before any is repeated."""
    while True:
        yield from random.sample(things, len(things))
