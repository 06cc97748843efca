"""Determines the batch size of a step, and the batches of a segment (adjacent steps of a process).

With `batchSize: auto`, a search finds the fastest batch size that fits into memory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.execution.length_sorting import WINDOW_ROWS
from batchinference.pipeline.row_batch import RowBatch
from batchinference.plan.stages import SEARCH_ROWS
from batchinference.spec.steps import Step

UNLIMITED = 1 << 40
"""The batch size of steps that compute a whole block at once."""
FIRST_SIZE = 8
"""The smallest batch size that the search tries."""
RUNS = 2
"""Number of timed batches per size. The first batch may include the time of warming up."""
GROWTH_BATCHES, MAX_GROWTH_BATCHES = 16, 1024
"""After GROWTH_BATCHES successful batches, a reduced size is doubled again. Each time that memory
runs out again, the number of batches is doubled, up to MAX_GROWTH_BATCHES."""
MAX_SMALLER = 16
"""The search ends after this number of consecutive batches with fewer rows than the batch size."""
GAIN = 1.05
"""Minimum speedup from doubling the size. The search ends if the speedup is smaller."""
FIRST_ROWS, MAX_GROWTH = 8, 8
"""The rows of a segment's first batch, and the largest factor from one batch size to the next."""
BATCH_SECONDS = 1.0
"""Target duration of the batches of a segment. With short batches, a slow step commits in time, and
few results are lost when the job stops."""
WINDOW_BATCHES = 30
"""Number of batches in a window, whose texts are sorted together (at most WINDOW_ROWS rows)."""


@dataclass
class BatchSize:
    """The batch size of one step in one process."""

    step: str
    size: int
    """Maximum number of rows of the next batch."""
    search_limit: int | None = None
    """Largest size that the search may try; None if there is no search."""
    notes: list[str] = field(default_factory=list)
    """Events to report (JSON)."""
    _rates: dict[int, list[float]] = field(default_factory=dict)
    _smaller: int = 0
    """The number of consecutive batches with fewer rows than `size`."""
    _limit: int = 0
    """A reduced size may grow again up to this size."""
    _fitted: int = 0
    """The largest number of rows for which memory was sufficient."""
    _successes: int = 0
    """The number of full batches since the last change of the size."""
    _wanted: int = 0
    """The number of full batches after which a reduced size is doubled."""

    @classmethod
    def of(cls, step: Step) -> BatchSize:
        """Return the initial batch size of a step; UNLIMITED if it sets none and has no model."""
        if step.batch_size == "auto":
            return cls(step.name, FIRST_SIZE, SEARCH_ROWS)
        default = step.model.default_batch_size if step.model else UNLIMITED
        return cls(step.name, step.batch_size or default)

    def record_success(self, rows: int, seconds: float) -> None:
        """Record the duration of a successful batch, and update the size. The search also ends
        after MAX_SMALLER small batches: a larger size would not change them."""
        if self.search_limit is None:
            self._grow_again(rows)
            return
        self._smaller = self._smaller + 1 if rows < self.size else 0
        ends = self._smaller == MAX_SMALLER
        if self._smaller and not ends:
            return
        rates = self._rates.setdefault(self.size, [])
        rates.append(rows / max(seconds, 1e-9))
        if len(rates) < RUNS and not ends:
            return
        best = max(self._rates, key=lambda size: max(self._rates[size]))
        before = self._rates.get(self.size // 2)
        gained = before is None or max(rates) >= GAIN * max(before)
        grows = gained and not ends and self.size * 2 <= self.search_limit
        if best == self.size and grows:
            self.size *= 2
        else:
            self.size, self.search_limit = best, None
            self._add_note(rows_per_second=round(max(self._rates[best]), 1))

    def _grow_again(self, rows: int) -> None:
        """Double a reduced size after enough successful batches, up to `_limit`."""
        if rows < self.size:
            return
        self._fitted = max(self._fitted, rows)
        if self.size >= self._limit:
            return
        self._successes += 1
        if self._successes == self._wanted:
            self.size, self._successes = min(2 * self.size, self._limit), 0

    def record_out_of_memory(self, rows: int, error: BaseException) -> None:
        """Halve the batch size. Raises JobFailure if the batch had only one row. The rows were
        large if the batch was smaller than usual, or if its size was sufficient before. The size
        may then grow again up to its old value."""
        if rows <= 1:
            raise JobFailure(
                f"step '{self.step}': out of memory with a batch of one row. Use a device with "
                f"more memory, split the model over several, or make rows smaller: {error}"
            ) from error
        half = max(1, rows // 2)
        of_large_rows = rows < self.size or self.size < self._limit
        self._limit = max(self._limit, self.size) if of_large_rows else max(half, self._fitted)
        self._wanted = min(2 * self._wanted, MAX_GROWTH_BATCHES) if self._wanted else GROWTH_BATCHES
        self.size, self.search_limit, self._successes = half, None, 0
        self._add_note(out_of_memory_at=rows)

    def take_notes(self) -> list[str]:
        """Return the events since the last call, as notes for the report (JSON)."""
        notes, self.notes = self.notes, []
        return notes

    def _add_note(self, **values: float) -> None:
        self.notes.append(json.dumps({"batch_size": self.size, **values}))


class BatchRows:
    """Determines how many rows take BATCH_SECONDS, as a multiple of a step's batch size."""

    def __init__(self, batch_rows: int, first_rows: int = FIRST_ROWS) -> None:
        self._unit = max(1, batch_rows)
        self.next = math.ceil(first_rows / self._unit) * self._unit
        """The number of rows of the next batch."""
        self.have_texts = False
        """Whether the rows have texts, and are therefore computed in windows."""

    @property
    def window(self) -> int:
        """The number of rows of the next window: one batch if the rows have no texts."""
        if not self.have_texts:
            return self.next
        return max(self._unit, min(WINDOW_BATCHES * self.next, WINDOW_ROWS))

    def cut(self, window: RowBatch) -> Iterator[tuple[RowBatch, int]]:
        """Yield the rows of a window in batches of about `next` input rows, each with its
        approximate number of input rows. `record_batch` may change `next` between batches. A batch
        has all rows and errors of each of its input rows."""
        rows, inputs = max(1, len(window.ids)), len(window.input_ids)
        units = max(1, inputs) * self._unit
        simple = window.has_unique_ids and not window.errors.num_rows
        simple = simple and window.shares is None
        cut = RowBatch.split_at if simple else RowBatch.split_between_inputs
        rest: RowBatch | None = window
        while rest is not None:
            wanted = math.ceil(self.next * rows / units) * self._unit
            batch, rest = cut(rest, wanted)
            yield batch, math.ceil(max(1, len(batch.ids)) * inputs / rows)

    def record_batch(self, rows: int, seconds: float) -> None:
        """Set the size of the next batch from the rows and seconds of the last one."""
        if not rows:
            return
        in_time = rows * BATCH_SECONDS / max(seconds, 1e-9)
        wanted = min(self.next * MAX_GROWTH, in_time)
        self.next = max(self._unit, int(wanted) // self._unit * self._unit)
