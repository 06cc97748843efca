"""Determines the batch size of a step.

It is the configured size, less after memory ran out, and with `auto` the size that is fastest."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from batchinference.pipeline.errors import JobFailure

FIRST_SIZE = 8
RUNS = 2
"""Number of timed batches per size. The first one may include warm-up."""
GAIN = 1.05
"""Minimum speedup from doubling the size for the search to continue."""


@dataclass
class BatchSize:
    """The batch size of one step in one replica."""

    step: str
    size: int
    """Maximum rows of the next batch."""
    most: int | None = None
    """Upper limit of the search for a size; None if there is no search."""
    notes: list[str] = field(default_factory=list)
    """Events that were not reported yet, as JSON."""
    _rates: dict[int, list[float]] = field(default_factory=dict)

    def ran(self, rows: int, seconds: float) -> None:
        """Record the duration of a successful batch and update the size."""
        if self.most is None or rows < self.size:
            return
        rates = self._rates.setdefault(self.size, [])
        rates.append(rows / max(seconds, 1e-9))
        if len(rates) < RUNS:
            return
        best = self._best()
        if best == self.size and self._gained() and self.size * 2 <= self.most:
            self.size *= 2
        else:
            self._settle(best)

    def ran_out_of_memory(self, rows: int, error: BaseException) -> None:
        """Halve the batch size. Raises JobFailure if the batch had only one row."""
        if rows <= 1:
            raise JobFailure(
                f"step '{self.step}': memory runs out with one row a batch: the model needs a "
                f"device with more memory, several of them, or smaller rows: {error}"
            ) from error
        self.size = max(1, rows // 2)
        self.most = None
        self._tell(out_of_memory_at=rows)

    def take_notes(self) -> list[str]:
        notes, self.notes = self.notes, []
        return notes

    def _best(self) -> int:
        return max(self._rates, key=lambda size: max(self._rates[size]))

    def _gained(self) -> bool:
        before = self._rates.get(self.size // 2)
        return before is None or max(self._rates[self.size]) >= GAIN * max(before)

    def _settle(self, size: int) -> None:
        self.size, self.most = size, None
        self._tell(rows_per_second=round(max(self._rates[size]), 1))

    def _tell(self, **values: float) -> None:
        self.notes.append(json.dumps({"batch_size": self.size, **values}))
