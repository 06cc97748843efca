"""The filter step: keeps the rows for which an expression is true."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.arrow import require_columns
from batchinference.pipeline.expression import ColumnExpression, UnsuitableTypes
from batchinference.pipeline.expression.type_fixes import condition_on
from batchinference.pipeline.steps import Transform, TransformResult, all_failed


class Filter(Transform):
    """Keeps the rows for which an expression is true, not those for which it is false or null.
    `field` names it in messages."""

    LOADS_NOTHING = True

    def __init__(self, step: str, expression: str, field: str = "filter") -> None:
        self._label, self._step, self._text = f"step '{step}': the {field}", step, expression
        self._expression = ColumnExpression(self._label, expression)

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        try:
            mask = self.mask(batch)
        except UnsuitableTypes as error:  # other batches may have other types
            return all_failed(batch.num_rows, TypeError(error.message))
        kept = np.flatnonzero(mask.to_numpy())
        return batch if len(kept) == batch.num_rows else TransformResult(batch.filter(mask), kept)

    @classmethod
    def check_types(cls, step: str, settings: str, known: pa.Table) -> pa.Table:
        cls(step, settings).check_columns(known)
        return known

    def check_columns(self, known: pa.Table) -> None:
        """Raise UnsuitableTypes if the expression does not suit the types of these columns. Checks
        nothing if it also reads other columns."""
        if self._expression.is_known(known):
            self.mask(known)

    def mask(self, batch: pa.Table) -> pa.ChunkedArray:
        """Return a boolean mask of the rows to keep. Raises the errors of ColumnExpression, and
        UnsuitableTypes if the expression is not a condition."""
        require_columns(self._step, self._expression.columns, batch)
        values = self._expression(batch)
        if pa.types.is_null(values.type):
            values = values.cast(pa.bool_())
        if not pa.types.is_boolean(values.type):
            text = self._text if self._text.isidentifier() else f"({self._text})"
            condition = condition_on(text, values.type)
            fix = f"{condition}, or {text} is not None" if condition else f"{text} is not None"
            raise UnsuitableTypes(
                f"{self._label} gives {values.type}, not true or false: {self._text}. Write {fix}, "
                "or another condition"
            )
        return pc.fill_null(values, False)
