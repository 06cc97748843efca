"""When which fault strikes at which job: drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from chaos.faults import FAULTS, Fault

FAULTS_PER_JOB = 3
EARLY = 0.25
"""Of the jobs, those that are struck before they have begun to do rows."""


@dataclass(frozen=True)
class Moment:
    """So many seconds after what came before: the first row, unless `early`, or another fault."""

    fault: Fault
    wait: float
    seed: int
    early: bool = False


def plans(count: int, seed: int) -> list[list[Moment]]:
    """A plan for each of so many jobs. Each fault comes once before any comes again."""
    random = Random(seed)
    deck = _dealt(random)
    return [list(_plan(deck, random)) for _ in range(count)]


def _plan(deck: Iterator[Fault], random: Random) -> Iterator[Moment]:
    early = random.random() < EARLY
    yield Moment(next(deck), random.uniform(0, 12), random.randrange(1 << 30), early)
    for _ in range(FAULTS_PER_JOB - 1):
        yield Moment(next(deck), random.uniform(1, 10), random.randrange(1 << 30))


def _dealt(random: Random) -> Iterator[Fault]:
    while True:
        yield from random.sample(FAULTS, len(FAULTS))
