"""Finds the rows that a model does not compute, because their inputs are null or empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from batchinference.pipeline.arrow import decoded
from batchinference.pipeline.row_warnings import warn
from batchinference.pipeline.type_widening import is_bytes, is_list, is_tensor
from batchinference.spec.expression import code_of, root_of
from batchinference.spec.models.prompts import fields_in
from batchinference.spec.warnings import WarningName

if TYPE_CHECKING:
    from batchinference.pipeline.expression import ColumnExpression
    from batchinference.spec.models import Model

_TEXTS = (kinds.is_string, kinds.is_large_string, kinds.is_string_view)


class MissingInput(ValueError):
    """The inputs of a row are null or empty, and the model's policy does not allow this."""


@dataclass(frozen=True)
class MissingInputs:
    """The batch rows that the model does not compute, by index."""

    skipped: dict[int, WarningName] = field(default_factory=dict)
    """The rows whose output is null, with the warning that says why."""
    failed: dict[int, Exception] = field(default_factory=dict)

    def computed(self, rows: int) -> np.ndarray:
        """Return the indexes (int64) of the batch rows that the model computes."""
        mask = np.ones(rows, dtype=bool)
        mask[[*self.skipped, *self.failed]] = False
        return np.flatnonzero(mask)

    def warn(self) -> None:
        """Report a warning for each row whose output is null."""
        for row, name in self.skipped.items():
            warn(name, row=row)


def missing_inputs(model: Model, table: pa.Table) -> MissingInputs:
    """Return the rows that the model does not compute because of `nullInput` and `emptyInput`."""
    if table.num_rows == 0:
        return MissingInputs()
    columns = {
        name: decoded(table.column(column))
        for name, column in model.inputs.items()
        if name not in model.parameter_inputs
    }
    columns |= {field: expression(table) for field, expression in nested_inputs(model).items()}
    missing = MissingInputs()
    is_null = {name: column.is_null().to_numpy() for name, column in columns.items()}
    null = reduce(np.logical_or, is_null.values(), np.zeros(table.num_rows, dtype=bool))
    for row in [] if model.null_input == "compute" else np.flatnonzero(null).tolist():
        names = ", ".join(name for name, mask in is_null.items() if mask[row])
        _add(missing, row, WarningName.NULL_INPUT, model.null_input, f"null in {names}")
    empty = {} if model.empty_input == "compute" else _empty_values(columns)
    rows = reduce(np.logical_and, empty.values(), ~null)
    for row in np.flatnonzero(rows).tolist() if empty else []:
        problem = f"empty in {', '.join(empty)}"
        _add(missing, row, WarningName.EMPTY_INPUT, model.empty_input, problem)
    return missing


def nested_inputs(model: Model) -> dict[str, ColumnExpression]:
    """Return the expression of each placeholder that names a field or an item of an input."""
    from batchinference.pipeline.expression import ColumnExpression  # needed by few workers

    return {
        field: ColumnExpression(
            f"'{{{field}}}'",
            f"{code_of(model.inputs[root_of(field)])}{field.removeprefix(root_of(field))}",
        )
        for template in model.templates
        for field in fields_in(template)
        if field != root_of(field)
    }


def _add(
    missing: MissingInputs, row: int, name: WarningName, policy: str | None, problem: str
) -> None:
    if policy == "fail":
        field_name = "nullInput" if name is WarningName.NULL_INPUT else "emptyInput"
        missing.failed[row] = MissingInput(f"inputs: {problem}, and {field_name} is fail")
    else:
        missing.skipped[row] = name


def _empty_values(columns: Mapping[str, pa.ChunkedArray]) -> dict[str, np.ndarray]:
    """Return a mask (bool) of the empty values of each column whose values can be empty."""
    masks = {name: _is_empty(column) for name, column in columns.items()}
    return {name: mask for name, mask in masks.items() if mask is not None}


def _is_empty(column: pa.ChunkedArray) -> np.ndarray | None:
    """Return a mask (bool) of the empty values: texts of white space only, and bytes, lists and
    tensors without elements. Return None for values that cannot be empty, such as numbers."""
    kind = column.type
    if any(is_text(kind) for is_text in _TEXTS):
        lengths = pc.binary_length(pc.utf8_trim_whitespace(column))
    elif is_bytes(kind):
        lengths = pc.binary_length(column)
    elif is_list(kind):
        lengths = pc.list_value_length(column)
    elif is_tensor(kind):
        return np.concatenate([_is_empty_tensor(chunk.storage) for chunk in column.chunks])
    else:
        return None
    return np.asarray(pc.fill_null(pc.equal(lengths, 0), False).to_numpy())


def _is_empty_tensor(storage: pa.Array) -> np.ndarray:
    values = storage.field("data") if kinds.is_struct(storage.type) else storage
    empty = pc.fill_null(pc.equal(pc.list_value_length(values), 0), False)
    return np.asarray(empty.to_numpy(zero_copy_only=False))
