"""Runs a stage in Ray Data: a callable over blocks that keeps the state of each row."""

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
"""Seconds before the retries of a batch after an error that may be transient."""
UNLIMITED = 1 << 40
"""The batch size for batches that are whole blocks."""


@dataclass(frozen=True)
class ErrorHandling:
    """What happens when a step raises on a row: the row becomes a failed row, or the job fails.

    `input` is the address of the input snapshot, which error messages use to name a row.
    """

    tolerant: bool
    input: Location

    def set_aside(self, step: str, row_id: int, share: int, error: Exception) -> pa.Table:
        """Return the row as a failed row. Raises JobFailure if no failed rows are allowed."""
        if not self.tolerant:
            (file,), (row,) = row_ids.unpack(np.array([row_id]))
            path = paths_of(self.input)[int(file)].as_py()
            raise JobFailure(
                f"step '{step}' failed on row {row} of {path}: {row_ids.describe(error)}"
            ) from error
        lines = traceback.format_exception(error)[-TRACEBACK_LINES:]
        return row_ids.failed_row(row_id, step, error, shown("".join(lines)), share)


def load_steps(stage: Stage) -> list[Transform]:
    """Return the loaded steps of a stage, with their models and user code. Raises ModelLoad."""
    custom, kinds = dict(stage.custom), dict(stage.kinds)
    device = device_of(cpus=stage.cpus, gpus=stage.gpus, custom=custom, kinds=kinds)
    return [load_step(step, device) for step in stage.steps]


class StageRunner:
    """Runs the steps of a stage over a table. Created once in each actor or worker process."""

    def __init__(self, stage: Stage, errors: ErrorHandling) -> None:
        pairs = zip(stage.steps, load_steps(stage), strict=True)
        self._steps = [StepRunner(step, transform, errors) for step, transform in pairs]

    def __call__(self, table: pa.Table) -> pa.Table:
        for step in self._steps:
            table = step(table)
        return row_ids.closed(table)


class StepRunner:
    """Runs one step over the good rows of a table. The other rows follow unchanged."""

    def __init__(self, step: Step, transform: Transform, errors: ErrorHandling) -> None:
        self.name = step.name
        self._transform = transform
        self._errors = errors
        self._batch = _first_size(step)
        self._waits = list(WAITS)

    def __call__(self, table: pa.Table) -> pa.Table:
        good, rest = row_ids.split(table)
        if good.num_rows == 0:
            # without the empty data columns, which the step may be meant to drop
            return table if rest is None else rest
        results: list[pa.Table] = []
        start = 0
        while start < good.num_rows:
            batch = good.slice(start, self._batch.size)
            if (result := self._run(batch)) is None:
                empty_caches()  # not earlier: the error referenced the tensors of the batch
                continue
            results += result
            start += batch.num_rows
        results += [row_ids.note_row(self.name, note) for note in self._batch.take_notes()]
        return concat([*results, rest] if rest is not None else results)

    def _run(self, batch: pa.Table) -> list[pa.Table] | None:
        """Return the results of a batch; None if it must be retried, maybe in smaller batches."""
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
            raise JobFailure(f"step '{self.name}' cannot continue: {words}") from error
        self._batch.ran(batch.num_rows, time.perf_counter() - began)
        self._waits = list(WAITS)
        return results

    def _isolated(self, batch: pa.Table) -> list[pa.Table]:
        """Return the results of the rows, followed by the failed rows."""
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
    # Ray Data cuts the batches for models; batches for functions are cut here
    return BatchSize(step.name, step.batch_size or UNLIMITED)
