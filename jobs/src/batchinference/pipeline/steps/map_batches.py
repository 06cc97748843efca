"""Runs the user's code on batches of NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import Batch, to_batch
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.steps.base import TransformResult
from batchinference.pipeline.steps.result_columns import ResultColumns, check_reserved, no_column


class MapBatches:
    """Calls the user's code on each batch. Columns returned unchanged are not converted back."""

    def __init__(self, name: str, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
        self._name = name
        self._function = function
        self._arguments = arguments
        self._columns = ResultColumns(name)

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        given = to_batch(batch)
        for array in given.values():
            # an in-place change would be lost, because the column would count as unchanged
            array.flags.writeable = False
        result = self._function(dict(given), **self._arguments)
        if not isinstance(result, dict) or not result:
            got = "an empty dict" if isinstance(result, dict) else type(result).__name__
            raise JobFailure(
                f"step '{self._name}' must return a dict of column name to array, got {got}"
            )
        for name, values in result.items():
            self._check(name, values, batch.num_rows)
        return self._changed(batch, given, result)

    def _check(self, name: str, values: Any, rows: int) -> None:
        check_reserved(self._name, name)
        try:
            returned = len(values)
        except TypeError as error:
            raise no_column(self._name, name, values, error) from error
        if returned != rows:
            raise JobFailure(
                f"step '{self._name}' returned {returned} rows in column '{name}' "
                f"for a batch of {rows}: it must return one for each"
            )

    def _changed(
        self, batch: pa.Table, given: Batch, result: dict[str, Any]
    ) -> pa.Table | TransformResult:
        untouched = {name for name, values in result.items() if values is given.get(name)}
        made, misfits = self._columns.of(
            {name: values for name, values in result.items() if name not in untouched}
        )
        fit = np.array([row for row in range(batch.num_rows) if row not in misfits], np.int64)
        if misfits and len(fit) == 0:
            return TransformResult(pa.table({}), fit, misfits)  # no rows, so no types
        rest = batch.take(fit) if misfits else batch
        table = pa.table(
            {name: rest.column(name) if name in untouched else made[name] for name in result}
        )
        return TransformResult(table, fit, misfits) if misfits else table
