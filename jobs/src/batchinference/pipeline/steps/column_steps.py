"""The steps filter, selectColumns, dropColumns, renameColumns, addColumns and labelFromPath."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.arrow import require_columns, with_column
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.expression import ColumnExpression, UnsuitableTypes
from batchinference.pipeline.expression.type_fixes import condition_on
from batchinference.pipeline.steps.transform import Transform, TransformResult, all_failed
from batchinference.spec.steps import LabelFromPath


class Filter(Transform):
    """Keeps the rows for which an expression is true, and drops rows for which it is false or null.
    Messages use `field` as the name of the expression."""

    LOADS_NOTHING = True

    def __init__(self, step: str, expression: str, field: str = "filter") -> None:
        self._label, self._step, self._text = f"step '{step}': the {field}", step, expression
        self._expression = ColumnExpression(self._label, expression)

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        try:
            mask = self.mask(batch)
        except UnsuitableTypes as error:  # fails these rows: other batches may have other types
            return all_failed(batch.num_rows, TypeError(error.message))
        rows = np.flatnonzero(mask.to_numpy())
        return batch if len(rows) == batch.num_rows else TransformResult(batch.filter(mask), rows)

    @classmethod
    def check_types(cls, step: str, settings: str, known: pa.Table) -> pa.Table:
        cls(step, settings).check_columns(known)
        return known

    def check_columns(self, known: pa.Table) -> None:
        """Raise UnsuitableTypes if the expression does not suit the types of these columns. Check
        nothing if the expression also reads other columns."""
        if self._expression.is_known(known):
            self.mask(known)

    def mask(self, batch: pa.Table) -> pa.ChunkedArray:
        """Return a mask (bool) of the rows to keep. Raises the errors of ColumnExpression, and
        UnsuitableTypes if the values of the expression are not true, false or null."""
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


@dataclass(frozen=True)
class SelectColumns(Transform):
    LOADS_NOTHING = True
    step: str
    columns: list[str]

    def __call__(self, batch: pa.Table) -> pa.Table:
        require_columns(self.step, self.columns, batch)
        return batch.select(self.columns)


@dataclass(frozen=True)
class DropColumns(Transform):
    LOADS_NOTHING = True
    step: str
    columns: list[str]

    def __call__(self, batch: pa.Table) -> pa.Table:
        require_columns(self.step, self.columns, batch)
        return batch.drop_columns(self.columns)


@dataclass(frozen=True)
class RenameColumns(Transform):
    step: str
    names: dict[str, str]

    def __call__(self, batch: pa.Table) -> pa.Table:
        require_columns(self.step, list(self.names), batch)
        renamed = [self.names.get(name, name) for name in batch.column_names]
        for new in self.names.values():
            if renamed.count(new) > 1:
                raise JobFailure(f"step '{self.step}': there is a column '{new}' already")
        return batch.rename_columns(renamed)


class AddColumns(Transform):
    """Adds or replaces columns. Each new column is computed from the columns before the step."""

    LOADS_NOTHING = True

    def __init__(self, step: str, columns: dict[str, str]) -> None:
        self._step = step
        self._columns = {
            name: ColumnExpression(f"step '{step}': column '{name}'", text)
            for name, text in columns.items()
        }

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        result = batch
        for name, expression in self._columns.items():
            require_columns(self._step, expression.columns, batch)
            try:
                result = with_column(result, name, expression(batch))
            except UnsuitableTypes as error:  # fails these rows: other batches may have other types
                return all_failed(batch.num_rows, TypeError(error.message))
        return result

    @classmethod
    def check_types(cls, step: str, settings: dict[str, str], known: pa.Table) -> pa.Table:
        result = known
        for name, expression in cls(step, settings)._columns.items():
            if expression.is_known(known):
                result = with_column(result, name, expression(known))
            elif name in result.column_names:
                result = result.drop_columns([name])
        return result


@dataclass(frozen=True)
class AddLabel(Transform):
    """Adds a column with one part of the column `path`, such as the name of a directory."""

    step: str
    label: LabelFromPath

    def __call__(self, batch: pa.Table) -> pa.Table:
        require_columns(self.step, ["path"], batch)
        labels = [self._part(path) for path in batch.column("path").to_pylist()]
        return with_column(batch, self.label.column, pa.array(labels, pa.string()))

    def _part(self, path: Any) -> str:
        """Return the part of a path that is the label. Raises ValueError if the part is missing."""
        parts = path.split("/") if isinstance(path, str) else []
        try:
            return parts[self.label.index]
        except IndexError:
            raise ValueError(f"path '{path}' has no part {self.label.index}") from None
