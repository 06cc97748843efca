"""A stage as Ray Data runs it: a callable over blocks that carries each row's fate along."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from batchinference.pipeline import row_ids
from batchinference.pipeline.arrow import concat
from batchinference.pipeline.error_attribution import is_out_of_memory, may_pass
from batchinference.pipeline.errors import JobFailure, shown
from batchinference.pipeline.execution.batch_size import FIRST_SIZE, BatchSize
from batchinference.pipeline.execution.error_isolation import isolate
from batchinference.pipeline.execution.step_results import apply_step
from batchinference.pipeline.input.listing import paths_of
from batchinference.pipeline.runtimes.device import device_of, empty_caches
from batchinference.pipeline.steps import Transform, load_step
from batchinference.pipeline.storage.location import Location
from batchinference.plan import Stage
from batchinference.plan.stages import SEARCH_ROWS
from batchinference.spec.steps import Step

TRACEBACK_LINES = 12
WAITS = (1.0, 4.0)
"""Seconds before a batch is tried again after trouble that may pass."""
UNLIMITED = 1 << 40
"""Rows of a batch that is a whole block."""


@dataclass(frozen=True)
class ErrorHandling:
    """What happens to a row on which a step raises: set aside, or the end of the job.

    `input` is the address of the frozen input, by which a row is named.
    """

    tolerant: bool
    input: Location

    def set_aside(self, step: str, row_id: int, share: int, error: Exception) -> pa.Table:
        """The row in the form of a bad row. Raises JobFailure where none is tolerated."""
        if not self.tolerant:
            (file,), (row,) = row_ids.unpack(np.array([row_id]))
            path = paths_of(self.input)[int(file)].as_py()
            raise JobFailure(
                f"step '{step}' failed on row {row} of {path}: {row_ids.describe(error)}"
            ) from error
        lines = traceback.format_exception(error)[-TRACEBACK_LINES:]
        return row_ids.failed_row(row_id, step, error, shown("".join(lines)), share)


def load_steps(stage: Stage) -> list[Transform]:
    """Load what the steps of a stage need: models and own code. Raises ModelLoad."""
    custom, kinds = dict(stage.custom), dict(stage.kinds)
    device = device_of(cpus=stage.cpus, gpus=stage.gpus, custom=custom, kinds=kinds)
    return [load_step(step, device) for step in stage.steps]


class StageRunner:
    """Runs the steps of a stage over a table. Made once in each actor or worker process."""

    def __init__(self, stage: Stage, errors: ErrorHandling) -> None:
        pairs = zip(stage.steps, load_steps(stage), strict=True)
        self._steps = [StepRunner(step, transform, errors) for step, transform in pairs]

    def __call__(self, table: pa.Table) -> pa.Table:
        for step in self._steps:
            table = step(table)
        return row_ids.closed(table)


class StepRunner:
    """Runs one step over the good rows of a table; the others pass by, behind them."""

    def __init__(self, step: Step, transform: Transform, errors: ErrorHandling) -> None:
        self.name = step.name
        self._transform = transform
        self._errors = errors
        self._batch = _first_size(step)
        self._waits = list(WAITS)

    def __call__(self, table: pa.Table) -> pa.Table:
        good, rest = row_ids.split(table)
        if good.num_rows == 0:
            # without the columns of others beside them, which the step may be there to drop
            return table if rest is None else rest
        results: list[pa.Table] = []
        start = 0
        while start < good.num_rows:
            batch = good.slice(start, self._batch.size)
            if (result := self._run(batch)) is None:
                empty_caches()  # only now: until here, the error held the tensors of the batch
                continue
            results += result
            start += batch.num_rows
        results += [row_ids.note_row(self.name, note) for note in self._batch.take_notes()]
        return concat([*results, rest] if rest is not None else results)

    def _run(self, batch: pa.Table) -> list[pa.Table] | None:
        """What becomes of a batch; None when it must be tried again in smaller ones."""
        began = time.perf_counter()
        try:
            results = self._isolated(batch)
        except JobFailure:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                self._batch.ran_out_of_memory(batch.num_rows, error)
                return None
            if may_pass(error) and self._waits:
                time.sleep(self._waits.pop(0))
                return None
            words = row_ids.describe(error)
            raise JobFailure(f"step '{self.name}' cannot go on: {words}") from error
        self._batch.ran(batch.num_rows, time.perf_counter() - began)
        self._waits = list(WAITS)
        return results

    def _isolated(self, batch: pa.Table) -> list[pa.Table]:
        """What becomes of the rows, with each on which the step raises set aside, behind them."""
        set_aside = partial(self._errors.set_aside, self.name)
        ids, shares = row_ids.ids_of(batch), row_ids.shares_of(batch)
        results: list[pa.Table] = []
        failed: list[pa.Table] = []
        for part in isolate(partial(apply_step, self._transform, set_aside=set_aside), batch):
            if isinstance(part.result, Exception):
                share = row_ids.FULL_SHARE if shares is None else int(shares[part.start])
                failed.append(set_aside(int(ids[part.start]), share, part.result))
            else:
                results.append(part.result)
        return results + failed


def _first_size(step: Step) -> BatchSize:
    if step.batch_size == "auto":
        return BatchSize(step.name, FIRST_SIZE, SEARCH_ROWS)
    # Ray Data cuts the batches of a model; those of a function are cut here
    return BatchSize(step.name, step.batch_size or UNLIMITED)
