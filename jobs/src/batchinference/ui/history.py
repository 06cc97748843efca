"""Remembers the progress of a job while the page is open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from batchinference.spec.report import RowsOverTime

MAX_POINTS = 120
"""Maximum number of remembered points. Beyond it, every second point is dropped."""
RATE_SECONDS = 15.0
"""The rate is measured over at least this many seconds, if the history is long enough."""


@dataclass
class History:
    """The finished rows of one job at the times when they were read."""

    points: list[tuple[float, int]] = field(default_factory=list)

    def add(self, now: float, rows: int) -> None:
        """Remember a number of rows. A lower number than before begins a new history."""
        if self.points and rows < self.points[-1][1]:
            self.points.clear()
        if len(self.points) >= MAX_POINTS:
            del self.points[1:-1:2]
        self.points.append((now, rows))

    @property
    def rate(self) -> float | None:
        """Rows per second over the last seconds; None if there are too few points."""
        return _rate(self.points)

    @property
    def over_time(self) -> RowsOverTime:
        """The history in the form of a report."""
        start = self.points[0][0] if self.points else 0.0
        seconds = [at - start for at, _ in self.points]
        return RowsOverTime(seconds=seconds, rows=[rows for _, rows in self.points])


def _rate(points: Sequence[tuple[float, int]]) -> float | None:
    if len(points) < 2:
        return None
    end, rows = points[-1]
    earlier = [point for point in points[:-1] if end - point[0] >= RATE_SECONDS]
    start, before = earlier[-1] if earlier else points[0]
    return (rows - before) / (end - start) if end > start else None
