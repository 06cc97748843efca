"""Checks the types of the columns that expressions use, before the job reads rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from batchinference.pipeline.arrow import with_column
from batchinference.pipeline.steps.expression import ColumnExpression, UnsuitableTypes
from batchinference.pipeline.steps.relational import Filter
from batchinference.spec.problems import Problem
from batchinference.spec.steps import Step, to_alias


def type_problems(steps: Sequence[Step], types: Mapping[str, pa.DataType]) -> Iterator[Problem]:
    """Yield the problem of the first expression that does not suit the types of the input. Columns
    of unknown type are not checked, and no step after the first model or user code."""
    known = pa.schema(list(types.items())).empty_table()
    for index, step in enumerate(steps):
        try:
            after = _after(step, known)
        except UnsuitableTypes as error:
            message = f"{error.message}. {_fix(error.message, known.schema)}"
            yield Problem(f"spec.steps[{index}].{to_alias(step.kind)}", message)
            return
        if after is None:
            return
        known = after


def _fix(message: str, schema: pa.Schema) -> str:
    used = [f"{field.name} is {field.type}" for field in schema if field.name in message]
    return (
        f"Here {', '.join(used)}. Convert a column, for example with int(NAME), or declare its "
        "type in read.options.types"
    )


def _after(step: Step, known: pa.Table) -> pa.Table | None:
    """Return the columns of known type after a step, without rows; None if all are unknown. Raises
    UnsuitableTypes."""
    names = known.column_names
    if step.filter is not None:
        if _are_known(step.filter, known):
            Filter(step.name, step.filter).mask(known)
        return known
    if step.add_columns is not None:
        return _with_columns(step.name, step.add_columns, known)
    if step.select_columns is not None:
        return known.select([name for name in step.select_columns if name in names])
    if step.drop_columns is not None:
        return known.select([name for name in names if name not in step.drop_columns])
    if step.rename_columns is not None:
        return known.rename_columns([step.rename_columns.get(name, name) for name in names])
    return None


def _with_columns(step: str, added: Mapping[str, str], known: pa.Table) -> pa.Table:
    result = known
    for name, text in added.items():
        if _are_known(text, known):
            values = ColumnExpression(f"step '{step}': column '{name}'", text)(known)
            result = with_column(result, name, values)
        elif name in result.column_names:
            result = result.drop_columns([name])
    return result


def _are_known(text: str, known: pa.Table) -> bool:
    """Return whether the types of all columns of an expression are known."""
    return set(ColumnExpression("", text).columns) <= set(known.column_names)
