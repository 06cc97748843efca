"""The filter step: keeps the rows for which an expression is true."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.arrow import require_columns
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.steps.base import TransformResult
from batchinference.pipeline.steps.expression import ColumnExpression


class Filter:
    """Keeps the rows for which an expression is true; null counts as false."""

    def __init__(self, step: str, expression: str) -> None:
        self._step, self._text = step, expression
        self._expression = ColumnExpression(f"step '{step}': the filter", expression)

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        mask = self.mask(batch)
        stay = np.flatnonzero(mask.to_numpy())
        return batch if len(stay) == batch.num_rows else TransformResult(batch.filter(mask), stay)

    def mask(self, batch: pa.Table) -> pa.ChunkedArray:
        """Return a boolean mask of the rows to keep. Raises as ColumnExpression does, and
        JobFailure if the expression is not a condition."""
        require_columns(self._step, self._expression.columns, batch)
        values = self._expression(batch)
        if pa.types.is_null(values.type):
            values = values.cast(pa.bool_())
        if not pa.types.is_boolean(values.type):
            raise JobFailure(
                f"step '{self._step}': the filter gives {values.type}, not true or false: "
                f"{self._text}"
            )
        return pc.fill_null(values, False)
