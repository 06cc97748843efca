"""Steps with `when`: they run for the rows for which the condition is true, and skip other rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import concat, with_nulls
from batchinference.pipeline.declared_types import arrow_type
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.expression import UnsuitableTypes
from batchinference.pipeline.row_warnings import collect_warnings, warn
from batchinference.pipeline.steps.column_steps import Filter
from batchinference.pipeline.steps.transform import (
    Transform,
    TransformResult,
    all_failed,
    as_result,
    is_prepared,
    split_prepared,
)
from batchinference.spec.column_types import ColumnType
from batchinference.spec.warnings import WarningName

if TYPE_CHECKING:
    from batchinference.spec.steps import Step


class Conditional(Transform):
    """Runs a step for the rows that meet its condition. A skipped row keeps its values, and has
    null in the columns that the step adds."""

    def __init__(
        self, step: Step, transform: Transform, adds: Mapping[str, ColumnType | None]
    ) -> None:
        self._step, self._transform = step.name, transform
        self._condition = Filter(step.name, step.when or "", "when")
        self._reads = None if step.facts.user_code else set(step.facts.reads)
        self.result_columns = getattr(transform, "result_columns", None)
        self._adds = set(adds)
        self._added = {
            name: pa.null() if kind is None or isinstance(kind, list) else arrow_type(kind)
            for name, kind in adds.items()  # values may be lists or tensors
        }
        """The types of the columns that the step adds or replaces: null until a type is known. For
        user code, these are all columns of the results, because the code may replace any column."""

    def rows_to_compute(self, batch: pa.Table) -> np.ndarray | None:
        """Return a mask (bool) of the rows for which the step runs; None if the condition cannot be
        computed. The next call of the step reports this error."""
        try:
            mask = self._condition.mask(batch)
        except (UnsuitableTypes, pa.ArrowException):
            return None
        runs: np.ndarray = mask.to_numpy()
        if not runs.any():
            return runs
        inner = self._transform.rows_to_compute(self._input(batch).filter(mask))
        if inner is not None:
            runs = runs.copy()
            runs[runs] = inner
        return runs

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        try:
            mask = self._condition.mask(batch)
        except UnsuitableTypes as error:  # fails these rows: other batches may have other types
            return all_failed(batch.num_rows, TypeError(error.message))
        rows = np.flatnonzero(mask.to_numpy())
        skips = len(rows) < batch.num_rows
        part = self._input(batch).filter(mask) if skips else batch
        with collect_warnings() as warnings:
            result = as_result(self._transform(part) if len(rows) or not skips else part)
        for warning in warnings:
            warn(warning.name, row=int(rows[warning.row]), amount=warning.amount)
        self._learn(part, result.table)
        return self._with_skipped(batch, rows, result) if skips else result

    def take_notes(self) -> Sequence[str]:
        return self._transform.take_notes()

    def _input(self, batch: pa.Table) -> pa.Table:
        """Return a batch with only the columns that the step reads; for user code, all columns."""
        names = batch.column_names
        if self._reads is None:
            return batch
        return batch.select([n for n in names if n in self._reads or is_prepared(n)])

    def _learn(self, part: pa.Table, new: pa.Table) -> None:
        """Remember the types of the columns that the step has added. `new` is the result of the
        step for `part`. Raises JobFailure if the step has dropped columns."""
        if not new.num_rows:
            return
        names = set(new.column_names)
        for name in part.column_names:
            if name not in names and not is_prepared(name):
                raise JobFailure(
                    f"step '{self._step}' has 'when', so it must keep all columns, but its result "
                    f"lacks column '{name}'. Return that column, and drop it in a later step"
                )
        known = set() if self._reads is None else {*part.column_names} - self._adds
        self._added |= {field.name: field.type for field in new.schema if field.name not in known}

    def _with_skipped(
        self, batch: pa.Table, rows: np.ndarray, result: TransformResult
    ) -> pa.Table | TransformResult:
        """Return the result for a batch: the step's `result` for `rows`, and the skipped rows. If
        `result` is partial, the returned result ends before the first row that `result` lacks."""
        is_complete = result.rows is None or result.rows == len(rows)
        covered = batch.num_rows if is_complete else int(rows[result.rows])
        skipped = np.setdiff1d(np.arange(covered), rows)
        for row in skipped.tolist():
            warn(WarningName.SKIPPED, row=row)
        parents = np.concatenate([rows[result.parents], skipped])
        order = np.argsort(parents, kind="stable")
        parents = parents[order]
        failed = {int(rows[row]): error for row, error in result.failed.items()}
        new = result.table
        table = self._table(batch, new, skipped, order, parents) if len(parents) else pa.table({})
        if is_complete and np.array_equal(parents, np.arange(batch.num_rows)):
            return table
        return TransformResult(table, parents, failed, None if is_complete else covered)

    def _table(
        self,
        batch: pa.Table,
        new: pa.Table,
        skipped: np.ndarray,
        order: np.ndarray,
        parents: np.ndarray,
    ) -> pa.Table:
        """Return the rows of `new`, the step's result, and the skipped rows, sorted by batch row.
        `order` has the indexes that sort them, and `parents` the batch row of each sorted row."""
        batch = split_prepared(batch)[0]
        changed = set(new.column_names if new.num_rows else ()) & self._added.keys()
        order_of_code = new.column_names if self._reads is None and new.num_rows else ()
        is_unchanged = np.array_equal(parents, np.arange(batch.num_rows))
        columns = {}
        for name in dict.fromkeys([*order_of_code, *batch.column_names, *self._added]):
            if name in changed and name in batch.column_names:
                old = batch.select([name]).take(pa.array(skipped))
                columns[name] = concat([new.select([name]), old]).column(0).take(pa.array(order))
            elif name in changed:
                new_rows = np.flatnonzero(order < new.num_rows)
                columns[name] = with_nulls(new.column(name), new_rows, len(order))
            elif name in batch.column_names:
                column = batch.column(name)
                columns[name] = column if is_unchanged else column.take(pa.array(parents))
            else:
                columns[name] = pa.nulls(len(order), self._added[name])
        return pa.table(columns)
