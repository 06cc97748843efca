"""Computes progress from row counts: percent, speed and remaining time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from batchinference.pipeline.commit.manifest import RowCounts
from batchinference.pipeline.input.planning import RowCount
from batchinference.spec.status import Progress


@dataclass
class Meter:
    """Turns row counts into progress that never decreases. Times are in seconds of one clock."""

    total: RowCount | None = None
    before: int = 0
    """Rows that earlier attempts have completed."""
    _since: float | None = field(default=None, init=False)
    counts: RowCounts = field(default=RowCounts(), init=False)
    """The highest counts that were committed at any time."""
    progress: Progress | None = field(default=None, init=False)
    """The result of the last reading."""

    def read(self, counts: RowCounts, now: float) -> None:
        """Update the progress at time `now`, when `counts` rows are committed."""
        if counts.read > self.counts.read:
            self.counts = counts
        rows = self.counts.read
        if self._since is None or rows <= self.before:
            self._since = now  # speed excludes the time in which models load
        rate = self._rate(now)
        total = None if self.total is None else max(self.total.rows, rows)
        self.progress = Progress(
            rows=rows,
            total=total,
            estimated=True if self.total and self.total.estimated else None,
            percent=self._percent(rows, total),
            rowsPerSecond=round(rate, 1) if rate else None,
            eta=duration((total - rows) / rate) if rate and total is not None else None,
        )

    def finish(self, counts: RowCounts, seconds: float) -> None:
        """Set the final progress of a finished job.

        The speed is the average over `seconds` of running, which includes loading models."""
        self.counts = counts
        done = counts.read - self.before
        rate = done / seconds if seconds > 0 and done > 0 else None
        self.progress = Progress(
            rows=counts.read,
            total=counts.read,
            percent=100,
            rowsPerSecond=round(rate, 1) if rate else None,
            eta="0s",
        )

    def _rate(self, now: float) -> float | None:
        """Return rows per second since just before the first rows; None if there are none yet."""
        elapsed = now - self._since if self._since is not None else 0.0
        rows = self.counts.read - self.before
        return rows / elapsed if elapsed > 0 and rows > 0 else None

    def _percent(self, rows: int, total: int | None) -> int | None:
        if not total or self.total is None:
            return None
        percent = 100 * rows // total
        return min(percent, 99) if self.total.estimated else percent


def duration(seconds: float) -> str:
    """Return seconds in the form 45s, 2m30s or 3h05m."""
    whole = math.ceil(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
