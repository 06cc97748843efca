"""The user's code over batches of NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from batchinference.pipeline.blocks import Batch, to_batch, to_column
from batchinference.pipeline.failures import JobFailure
from batchinference.plan.columns import OWN_PREFIX


class MapBatches:
    """Calls the user's code; columns that come back untouched are not converted twice."""

    def __init__(self, name: str, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
        self._name = name
        self._function = function
        self._arguments = arguments

    def __call__(self, batch: pa.Table) -> pa.Table:
        given = to_batch(batch)
        for array in given.values():
            # a change in place would be lost where the column counts as untouched
            array.flags.writeable = False
        result = self._function(dict(given), **self._arguments)
        if not isinstance(result, dict) or not result:
            got = "an empty dict" if isinstance(result, dict) else type(result).__name__
            raise JobFailure(
                f"step '{self._name}' must return a dict of column name to array, got {got}"
            )
        return self._table(batch, given, result)

    def _table(self, batch: pa.Table, given: Batch, result: dict[str, Any]) -> pa.Table:
        columns = {}
        for name, values in result.items():
            if str(name).startswith(OWN_PREFIX):
                raise JobFailure(f"step '{self._name}' returned a column '{name}': names that "
                                 f"begin with {OWN_PREFIX} are reserved")  # fmt: skip
            untouched = name in given and values is given[name]
            columns[name] = batch.column(name) if untouched else self._column(name, values)
            if len(columns[name]) != batch.num_rows:
                raise JobFailure(
                    f"step '{self._name}' returned {len(columns[name])} rows in column '{name}' "
                    f"for a batch of {batch.num_rows}: it must return one for each"
                )
        return pa.table(columns)

    def _column(self, name: str, values: Any) -> pa.Array | pa.ChunkedArray:
        try:
            return to_column(values)
        except TypeError as error:
            raise JobFailure(
                f"step '{self._name}' returned a {type(values).__name__} in column '{name}' that "
                f"is no column: {error}"
            ) from error
