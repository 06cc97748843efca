"""The steps selectColumns, dropColumns, renameColumns, addColumns and labelFromPath."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from batchinference.pipeline.arrow import require_columns, with_column
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.expression import ColumnExpression, UnsuitableTypes
from batchinference.pipeline.steps import Transform, TransformResult, all_failed
from batchinference.spec.steps import LabelFromPath


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
    """Adds or replaces columns. All are computed from the columns before the step."""

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
            except UnsuitableTypes as error:  # other batches may have other types
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

    def _part(self, path: str) -> str:
        try:
            return path.split("/")[self.label.index]
        except IndexError:
            raise ValueError(f"path '{path}' has no part {self.label.index}") from None
