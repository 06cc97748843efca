"""Reads which tests passed and failed from the files that plugins/outcomes.py writes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcomes:
    """The tests of one or more runs of pytest."""

    passed: int = 0
    failed: tuple[str, ...] = ()
    """Ids of the tests that failed, or could not be collected or set up."""
    complete: bool = True
    """Whether each run finished and reported every collected test. If it was aborted, or a worker
    crashed, it is unknown which other tests would fail."""

    def __add__(self, other: Outcomes) -> Outcomes:
        return Outcomes(
            self.passed + other.passed, self.failed + other.failed, self.complete and other.complete
        )


def read_outcomes(directory: Path) -> Outcomes:
    """Return the outcomes of all runs that wrote into the directory. Incomplete if none did."""
    files = sorted(directory.glob("*.json"))
    documents = (json.loads(file.read_text()) for file in files)
    each = [Outcomes(one["passed"], tuple(one["failed"]), one["complete"]) for one in documents]
    return total(each) if each else Outcomes(complete=False)


def total(each: Iterable[Outcomes]) -> Outcomes:
    """Return the sum of outcomes."""
    return sum(each, Outcomes())
