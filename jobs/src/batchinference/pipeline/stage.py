"""A stage as Ray Data runs it: a callable over blocks that carries each row's fate along."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline import rows
from batchinference.pipeline.blocks import concat
from batchinference.pipeline.devices import device_of
from batchinference.pipeline.failures import JobFailure
from batchinference.pipeline.inputs import paths_of
from batchinference.pipeline.isolation import Apply, Part, isolate
from batchinference.pipeline.steps import Filter, Transform, load_step
from batchinference.pipeline.storage import Address
from batchinference.plan import Stage
from batchinference.spec.steps import Step

TRACEBACK_LINES = 12


@dataclass(frozen=True)
class ErrorHandling:
    """What happens to a row on which a step raises: set aside, or the end of the job.

    `input` is the address of the frozen input, by which a row is named.
    """

    tolerant: bool
    input: Address

    def set_aside(self, step: str, row_id: int, error: Exception) -> pa.Table:
        """The row in the form of a bad row. Raises JobFailure where none is tolerated."""
        if not self.tolerant:
            (file,), (row,) = rows.unpack(np.array([row_id]))
            path = paths_of(self.input)[int(file)].as_py()
            raise JobFailure(
                f"step '{step}' failed on row {row} of {path}: {rows.describe(error)}"
            ) from error
        lines = traceback.format_exception(error)[-TRACEBACK_LINES:]
        return rows.failed_row(row_id, step, error, "".join(lines))


class StageRunner:
    """Runs the steps of a stage over a table. Made once in each actor or worker process."""

    def __init__(self, stage: Stage, errors: ErrorHandling) -> None:
        device = device_of(cpus=stage.cpus, gpus=stage.gpus)
        self._steps = [StepRunner(step, load_step(step, device), errors) for step in stage.steps]

    def __call__(self, table: pa.Table) -> pa.Table:
        for step in self._steps:
            table = step(table)
        return table


class StepRunner:
    """Runs one step over the good rows of a table; the others pass by, behind them."""

    def __init__(self, step: Step, loaded: Transform | Filter, errors: ErrorHandling) -> None:
        self._step = step
        self._loaded = loaded
        self._errors = errors

    def __call__(self, table: pa.Table) -> pa.Table:
        good, rest = rows.split(table)
        if good.num_rows == 0:
            return table
        if isinstance(self._loaded, Filter):
            results = self._isolated(partial(keep, self._loaded), good)
        else:
            results = self._transform(self._loaded, good)
        if rest is not None:
            results.append(rest)
        return concat(results)

    def _transform(self, transform: Transform, good: pa.Table) -> list[pa.Table]:
        # Ray Data cuts the batches of a model; those of a function are cut here
        size = (None if self._step.model else self._step.batch_size) or good.num_rows
        results: list[pa.Table] = []
        for start in range(0, good.num_rows, size):
            results += self._isolated(partial(change, transform), good.slice(start, size))
        return results

    def _isolated(self, apply: Apply, good: pa.Table) -> list[pa.Table]:
        """What becomes of the rows, with each on which the step raises set aside."""
        ids = good.column(rows.ID)
        results: list[pa.Table] = []
        failed: list[pa.Table] = []
        for part in self._parts(apply, good):
            if isinstance(part.result, Exception):
                row_id = ids[part.start].as_py()
                failed.append(self._errors.set_aside(self._step.name, row_id, part.result))
            else:
                results.append(part.result)
        return results + failed

    def _parts(self, apply: Apply, good: pa.Table) -> Iterator[Part]:
        try:
            yield from isolate(apply, good)
        except JobFailure:
            raise
        except Exception as error:
            words = rows.describe(error)
            raise JobFailure(f"step '{self._step.name}' cannot go on: {words}") from error


def change(transform: Transform, good: pa.Table) -> pa.Table:
    """The rows with the data that the step gives them."""
    changed = transform(good.select(rows.data_columns(good)))
    return rows.with_own_columns(changed, good.column(rows.ID))


def keep(chooser: Filter, good: pa.Table) -> pa.Table:
    """The rows that stay, and without their data those that do not."""
    mask = chooser.mask(good)
    dropped = good.column(rows.ID).filter(pc.invert(mask))
    if len(dropped) == 0:
        return good
    skipped = rows.skipped_rows(dropped)
    return skipped if len(dropped) == good.num_rows else concat([good.filter(mask), skipped])
