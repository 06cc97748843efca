"""Steps that need no model and no code: select, drop, rename and add columns, filter, explode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.arrow import require_columns, to_batch, to_column, with_column
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.expression import ColumnExpression, UnsuitableTypes
from batchinference.pipeline.expression.advice import test_of
from batchinference.pipeline.steps import (
    RESULT_BYTES,
    Transform,
    TransformResult,
    all_failed,
    bytes_to_repeat,
    of_first_rows,
)
from batchinference.pipeline.type_widening import is_list, is_tensor

if TYPE_CHECKING:
    from batchinference.spec.steps import Explode, LabelFromPath


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
                message = f"step '{self.step}': there is a column '{new}' already"
                raise JobFailure(message)
        return batch.rename_columns(renamed)


class AddColumns(Transform):
    """Adds or replaces columns. Each is computed from the columns before the step."""

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
    """Adds a column with one part of the path of each row's file."""

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


class Filter(Transform):
    """Keeps the rows for which an expression is true; null counts as false."""

    LOADS_NOTHING = True

    def __init__(self, step: str, expression: str, field: str = "filter") -> None:
        self._label, self._step, self._text = f"step '{step}': the {field}", step, expression
        self._expression = ColumnExpression(self._label, expression)

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        try:
            mask = self.mask(batch)
        except UnsuitableTypes as error:  # other batches may have other types
            return all_failed(batch.num_rows, TypeError(error.message))
        stay = np.flatnonzero(mask.to_numpy())
        return batch if len(stay) == batch.num_rows else TransformResult(batch.filter(mask), stay)

    @classmethod
    def check_types(cls, step: str, settings: str, known: pa.Table) -> pa.Table:
        cls(step, settings).check_columns(known)
        return known

    def check_columns(self, known: pa.Table) -> None:
        """Raise UnsuitableTypes if the expression does not suit the types of these columns."""
        if self._expression.is_known(known):
            self.mask(known)

    def mask(self, batch: pa.Table) -> pa.ChunkedArray:
        """Return a boolean mask of the rows to keep. Raises as ColumnExpression does, and
        UnsuitableTypes if the expression is not a condition."""
        require_columns(self._step, self._expression.columns, batch)
        values = self._expression(batch)
        if pa.types.is_null(values.type):
            values = values.cast(pa.bool_())
        if not pa.types.is_boolean(values.type):
            text = self._text if self._text.isidentifier() else f"({self._text})"
            test = test_of(text, values.type)
            fix = f"{test}, or {text} is not None" if test else f"{text} is not None"
            raise UnsuitableTypes(
                f"{self._label} gives {values.type}, not true or false: {self._text}. Write {fix}, "
                "or another condition"
            )
        return pc.fill_null(values, False)


class ExplodeList(Transform):
    """Repeats each row once per element of a list. Rows without elements are filtered.

    If the rows would take too much memory, the result covers only the first rows of the batch."""

    LOADS_NOTHING = True

    @classmethod
    def check_types(cls, step: str, settings: Explode, known: pa.Table) -> None:
        if settings.column in known.column_names:
            cls(step, settings)._elements(known.column(settings.column))

    def __init__(self, step: str, explode: Explode) -> None:
        self._step = step
        self._column = explode.column

    def __call__(self, batch: pa.Table) -> TransformResult:
        require_columns(self._step, [self._column], batch)
        try:
            elements, parents = self._elements(batch.column(self._column))
        except UnsuitableTypes as error:  # other batches may have other types
            return all_failed(batch.num_rows, TypeError(error.message))
        rows = _rows_that_fit(batch, self._column, parents)
        if rows < batch.num_rows:
            elements, parents = self._elements(batch.column(self._column).slice(0, rows))
        columns = {
            name: elements if name == self._column else batch.column(name).take(pa.array(parents))
            for name in batch.column_names
        }
        result = TransformResult(pa.table(columns), parents)
        return result if rows == batch.num_rows else of_first_rows(result, rows)

    def _elements(self, column: pa.ChunkedArray) -> tuple[pa.Array | pa.ChunkedArray, np.ndarray]:
        """Return all elements, and the row index of each element."""
        if is_tensor(column.type):
            return _of_tensors(column)
        if pa.types.is_null(column.type):  # null in the whole block; other blocks may have lists
            return column.slice(0, 0), np.zeros(0, dtype=np.int64)
        if not is_list(column.type):
            raise UnsuitableTypes(
                f"step '{self._step}': column '{self._column}' holds {column.type}, and explode "
                "needs lists"
            )
        array = column.combine_chunks()
        # null lists may refer to elements, which flattening skips
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        return pc.list_flatten(array), np.repeat(np.arange(len(array)), lengths)


def _rows_that_fit(batch: pa.Table, column: str, parents: np.ndarray) -> int:
    """Return how many of the first rows take up to about RESULT_BYTES if each is repeated for each
    element of a column, at least one."""
    copies = np.bincount(parents, minlength=batch.num_rows)
    lists, others = batch.column(column), batch.drop_columns([column])
    left, blocks = RESULT_BYTES, [(0, batch.num_rows)]
    while blocks:  # halve blocks until it is known that they fit: large rows are found in few steps
        first, stop = blocks.pop()
        rows = stop - first
        most = int(copies[first:stop].max(initial=0))
        size = most * bytes_to_repeat(others, first, rows) + lists.slice(first, rows).nbytes
        if size <= left:
            left -= size
        elif rows == 1:
            return max(1, first)
        else:
            blocks += [(first + rows // 2, stop), (first, first + rows // 2)]
    return int(batch.num_rows)


def _of_tensors(column: pa.ChunkedArray) -> tuple[pa.Array | pa.ChunkedArray, np.ndarray]:
    """Return the parts of tensors along their first axis, and the row index of each part."""
    tensors = list(to_batch(pa.table({"tensor": column}))["tensor"])
    lengths = [0 if tensor is None else len(tensor) for tensor in tensors]
    parts = [part for tensor in tensors if tensor is not None for part in tensor]
    elements = to_column(np.array(parts)) if parts else pa.nulls(0)
    return elements, np.repeat(np.arange(len(tensors)), lengths)
