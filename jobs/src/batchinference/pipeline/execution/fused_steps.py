"""The steps of a fused task: the sizes of their batches, and the order of the rows in them."""

from __future__ import annotations

import itertools
import math
import os
import pickle
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Event
from typing import TYPE_CHECKING

from batchinference.pipeline.execution.step_runner import (
    UNLIMITED,
    ErrorHandling,
    StageRunner,
    first_size,
)
from batchinference.pipeline.execution.text_windows import (
    WINDOW_ROWS,
    columns_of_first_model,
    longest_first,
    text_columns,
)
from batchinference.pipeline.input.planning import FILE_BYTES
from batchinference.pipeline.row_batch import RowBatch, merged, resized

if TYPE_CHECKING:
    from batchinference.plan import Plan

BATCH_BYTES = 16 << 20
"""The largest batch that the steps get, unless a step has a batch size: then MAX_BATCH_BYTES."""
MAX_BATCH_BYTES = 128 << 20
FIRST_ROWS, MAX_GROWTH = 64, 8
BATCH_SECONDS = 1.0
"""Batches grow or shrink until they take this long. A slow step then commits in time, and a stop
loses little work."""
WINDOW_BATCHES = 30
"""A window has as many rows as this number of batches, but at most WINDOW_ROWS."""
WINDOW_SECONDS = 2 * WINDOW_BATCHES * BATCH_SECONDS
"""A window that takes longer, because the steps were expected to be faster, is yielded in parts."""


@dataclass(frozen=True)
class Steps:
    """The stages of a job, which each worker process loads once for all its tasks."""

    pickled: bytes
    batch_rows: int = 0
    """The largest batch size of a step; 0 if no step has one."""
    texts: tuple[str, ...] = ()
    """The columns of the input that the first model reads."""

    @classmethod
    def of(cls, plan: Plan, errors: ErrorHandling) -> Steps:
        """Return the steps of a plan. Each computes with as many threads as the task has CPUs."""
        stages = [replace(stage, cpus=plan.task_cpus) for stage in plan.stages]
        steps = [step for stage in stages for step in stage.steps]
        sizes = (first_size(step).size for step in steps)
        largest = max((size for size in sizes if size < UNLIMITED), default=0)
        return cls(pickle.dumps((stages, errors)), largest, columns_of_first_model(steps))

    def applied_to(self, read: Iterator[RowBatch], stopping: Event) -> Iterator[RowBatch]:
        """Yield the results of the rows. If `stopping` is set, the results that are complete are
        yielded next.

        If the first model reads texts, rows are computed in windows, longest texts first, so that
        the texts of a batch have similar lengths and are padded little. The results are in the
        order of the input, except those of a window that is yielded in parts: each part has this
        order, but the parts have not."""
        rows = BatchRows(self.batch_rows)
        size = MAX_BATCH_BYTES if self.batch_rows else BATCH_BYTES

        def wanted() -> int:
            return 1 if stopping.is_set() else rows.window  # a stop does not wait for a window

        for window in resized(self._searched(read, rows), wanted, size):
            ordered = longest_first(window, self.texts)
            _stages_of_process(self.pickled)  # the time to load them is not that of a batch
            done: list[RowBatch] = []
            since = time.monotonic()
            for batch in rows.cut(ordered):
                began, waited = time.monotonic(), 0.0
                for result in self._results(batch):
                    done.append(result)
                    if sum(one.nbytes for one in done) >= FILE_BYTES:
                        paused = time.monotonic()
                        yield merged(done).in_order_of(window.ids)
                        done = []
                        waited += time.monotonic() - paused  # perhaps for the previous commit
                now = time.monotonic()
                rows.took(len(batch.ids), now - began - waited)
                if stopping.is_set() or now - since >= WINDOW_SECONDS:
                    yield from [merged(done).in_order_of(window.ids)] if done else []
                    done, since = [], now
            if done:
                yield merged(done).in_order_of(window.ids)

    def _searched(self, read: Iterator[RowBatch], rows: BatchRows) -> Iterator[RowBatch]:
        """Yield the batches. Record if they have texts: batches without rows have no columns."""
        for batch in read:
            rows.have_texts |= bool(text_columns(batch.table, self.texts))
            yield batch

    def _results(self, batch: RowBatch) -> Iterator[RowBatch]:
        batches = iter([batch])
        for stage in _stages_of_process(self.pickled):
            batches = itertools.chain.from_iterable(map(stage, batches))
        yield from batches


class BatchRows:
    """Finds the number of rows that take BATCH_SECONDS, as a multiple of a step's batch size."""

    def __init__(self, batch_rows: int) -> None:
        self._unit = max(1, batch_rows)
        self.next = math.ceil(FIRST_ROWS / self._unit) * self._unit
        """The number of rows of the next batch."""
        self.have_texts = False
        """Whether the rows are texts, and are computed in windows."""

    @property
    def window(self) -> int:
        """The number of rows of the next window, which is one batch if the rows are no texts."""
        if not self.have_texts:
            return self.next
        return max(self._unit, min(WINDOW_BATCHES * self.next, WINDOW_ROWS))

    def cut(self, window: RowBatch) -> Iterator[RowBatch]:
        """Yield the rows of a window in batches. The size of each batch follows from the others."""
        rest: RowBatch | None = window
        while rest is not None:
            batch, rest = rest.cut(self.next)
            yield batch

    def took(self, rows: int, seconds: float) -> None:
        """Record how long a batch took."""
        if not rows:
            return
        most = self.next * MAX_GROWTH
        wanted = min(most, rows * BATCH_SECONDS / max(seconds, 1e-9))
        self.next = max(self._unit, int(wanted) // self._unit * self._unit)


@lru_cache(maxsize=1)  # models are large
def _stages_of_process(pickled: bytes) -> list[StageRunner]:
    stages, errors = pickle.loads(pickled)  # noqa: S301 - our own bytes, from the driver
    if stages:  # tokenizers would start a thread for each CPU of the machine
        os.environ.setdefault("RAYON_NUM_THREADS", str(int(stages[0].cpus)))
    return [StageRunner(stage, errors) for stage in stages]
