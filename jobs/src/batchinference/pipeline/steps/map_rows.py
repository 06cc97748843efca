"""Runs the user's code on single rows. It returns one row (map) or any number of rows (flatMap).

A row is a dict as Ray Data passes it to `map`: plain values, and NumPy arrays for columns of
tensors. If the code raises on a row, only that row fails, and no other row is retried. A row also
fails if the code returns a value that does not fit into its column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import rows_of
from batchinference.pipeline.error_attribution import is_about_the_row
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.steps.base import TransformResult
from batchinference.pipeline.steps.result_columns import ResultColumns, check_reserved

Row = dict[str, Any]


class MapRows:
    """Calls the user's code on each row. The code returns one row."""

    def __init__(self, name: str, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
        self._name = name
        self._function = function
        self._arguments = arguments
        self._columns = ResultColumns(name)

    def __call__(self, batch: pa.Table) -> TransformResult:
        results: list[Row] = []
        parents: list[int] = []
        failed: dict[int, Exception] = {}
        for number, row in enumerate(rows_of(batch)):
            try:
                made = self._made(row)
            except Exception as error:
                if not is_about_the_row(error):
                    raise
                failed[number] = error
                continue
            results += made
            parents += [number] * len(made)
        return self._changed(results, parents, failed)

    def _made(self, row: Row) -> list[Row]:
        return [self._checked(self._function(row, **self._arguments))]

    def _checked(self, row: Any) -> Row:
        if not isinstance(row, dict) or not row:
            got = "an empty dict" if isinstance(row, dict) else type(row).__name__
            raise JobFailure(f"step '{self._name}' must return a row as a dict, got {got}")
        for column in row:
            check_reserved(self._name, column)
        return row

    def _changed(
        self, results: list[Row], parents: list[int], failed: dict[int, Exception]
    ) -> TransformResult:
        names = dict.fromkeys(name for row in results for name in row)
        columns, misfits = self._columns.of(
            {name: [row.get(name) for row in results] for name in names}
        )
        bad = {parents[row]: error for row, error in misfits.items()}
        kept = [row for row in range(len(results)) if row not in misfits]
        # a row fails as a whole: if one of its results does not fit, drop the others too
        whole = [row for row in kept if parents[row] not in bad]
        table = pa.table(columns)
        if len(whole) < len(kept):
            table = table.filter(pa.array([parents[row] not in bad for row in kept]))
        numbers = np.array([parents[row] for row in whole], dtype=np.int64)
        return TransformResult(table, numbers, failed | bad)


class FlatMap(MapRows):
    """Calls the user's code on each row. The code returns any number of rows."""

    def _made(self, row: Row) -> list[Row]:
        made = self._function(row, **self._arguments)
        if isinstance(made, dict | str | bytes) or not hasattr(made, "__iter__"):
            kind = type(made).__name__
            raise JobFailure(f"step '{self._name}' must return a list of rows, got {kind}")
        return [self._checked(one) for one in made]
