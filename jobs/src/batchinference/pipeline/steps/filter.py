"""The filter step: keeps rows by an expression over columns, computed by Arrow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.arrow import require_columns
from batchinference.pipeline.errors import BadInput, JobFailure
from batchinference.pipeline.steps.base import TransformResult
from batchinference.pipeline.steps.filter_expression import NoSuchValue, compute, to_arrow
from batchinference.spec.expression import columns_of, parse_expression


class Filter:
    """Keeps the rows for which an expression is true; null counts as false."""

    def __init__(self, step: str, expression: str) -> None:
        self._step = step
        self._expression = expression
        self._tree = parse_expression(expression)
        self._columns = sorted(columns_of(self._tree))
        self._known: dict[pa.Schema, pc.Expression] = {}

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        mask = self.mask(batch)
        stay = np.flatnonzero(mask.to_numpy())
        return batch if len(stay) == batch.num_rows else TransformResult(batch.filter(mask), stay)

    def mask(self, batch: pa.Table) -> pa.ChunkedArray:
        """Return a boolean mask of the rows to keep. Raises JobFailure if the expression does not
        fit the columns, and ArrowInvalid if it fails for a row, for example because a sum
        overflows."""
        require_columns(self._step, self._columns, batch)
        narrow = batch.select(self._columns)
        schema = narrow.schema.remove_metadata()
        if schema not in self._known:
            self._known[schema] = self._fitting(schema)
        return pc.fill_null(compute(self._known[schema], narrow), False)

    def _fitting(self, schema: pa.Schema) -> pc.Expression:
        step, text = f"step '{self._step}'", self._expression
        nothing = pa.table([pa.nulls(1, field.type) for field in schema], schema=schema)
        try:
            result = to_arrow(self._tree, schema)
            compute(result.expression, nothing)
        except NoSuchValue as error:
            raise BadInput(f"{step}: {error}: {text}") from None
        except (ValueError, TypeError, NotImplementedError) as error:  # including Arrow's errors
            raise JobFailure(f"{step}: the filter cannot be computed: {text}: {error}") from None
        if not pa.types.is_boolean(result.kind):
            raise JobFailure(f"{step}: the filter gives {result.kind}, not true or false: {text}")
        return result.expression
