"""Checks, before a job starts, that its steps read existing columns of suitable types."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa

from batchinference.pipeline.arrow import empty_table
from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.expression import UnsuitableTypes
from batchinference.pipeline.expression.type_fixes import CONVERT
from batchinference.pipeline.steps import class_of
from batchinference.pipeline.steps.code_checks.function_signatures import (
    columns_after_code,
    columns_of_code,
)
from batchinference.pipeline.steps.code_checks.imports import check_callable
from batchinference.pipeline.steps.column_steps import Filter
from batchinference.pipeline.steps.schema_inference import result_without_rows
from batchinference.pipeline.type_widening import unify_types
from batchinference.spec.problems import Problem, did_you_mean
from batchinference.spec.steps import Step, to_alias


def type_problems(steps: Sequence[Step], types: Mapping[str, pa.DataType]) -> Iterator[Problem]:
    """Yield at most one problem: the first step that does not suit the types of its columns.
    `types` are the input types. Columns of unknown type, and steps after user code, are skipped."""
    known = empty_table(pa.schema(list(types.items())))
    for index, step in enumerate(steps):
        field = "cascade" if step.cascade else "when"
        try:
            if (condition := step.condition) is not None:
                Filter(step.name, condition, field).check_columns(known)
            field = to_alias(step.kind)
            before, known = known, _columns_after(step, known)
            _check_replaced(step, before, known)
        except UnsuitableTypes as error:
            path = f"spec.steps[{index}].{field}"
            yield Problem(path, f"{error.message}{_second_fix(error.message, types)}")
            return
        if step.facts.user_code:
            return


def code_problems(steps: Sequence[Step], columns: list[str] | None) -> Iterator[Problem]:
    """Yield at most one problem: user code reads a missing column, or a step reads a column that
    user code has dropped. `columns` are the input columns; None if they are unknown."""
    before_code, last_code, fix_of_code = columns, "", ""
    for index, step in enumerate(steps):
        code, module = step.python, _module_of(step)
        if code is None:
            reads = dict.fromkeys(step.facts.reads, 0)
        else:
            reads = columns_of_code(code, module) if module else {}
        if columns is not None and (code or last_code):
            for column in (name for name in reads if name not in columns):
                is_dropped = column in (before_code or ()) and last_code
                fix = f". {fix_of_code}" if is_dropped else did_you_mean(column, columns)
                what = f"step '{step.name}' reads column '{column}', and {last_code} returns only"
                if code:
                    where = f"column '{column}' in line {reads[column]}"
                    what = f"step '{step.name}': '{code.callable}' reads {where}, but the columns"
                    what += " here are"
                message = f"{what} {', '.join(columns)}{fix or '. Use one of them'}"
                yield Problem(f"spec.steps[{index}].{to_alias(step.kind)}", message)
                return
        if code is None:
            columns = step.facts.columns_after(columns)
            continue
        before_code, returned = columns, columns_after_code(code, module) if module else None
        columns = returned[0] if returned and not step.condition else None
        last_code, fix_of_code = (f"step '{step.name}'", returned[1]) if returned else ("", "")


def _module_of(step: Step) -> ast.Module | None:
    """Return the syntax tree of the module of a python step; None if unknown or invalid."""
    with suppress(ModelLoad):  # `check_step` reports it
        return check_callable(step.name, step.python.callable) if step.python else None
    return None


def _second_fix(message: str, types: Mapping[str, pa.DataType]) -> str:
    """Return a second fix for a message that says to convert a column; an empty text if there is
    none. `types` are the types of the input columns."""
    of_input = any(f"{name} is {kind}" in message for name, kind in types.items())
    fix = message.rpartition(". ")[2]
    is_cast = of_input and (fix == CONVERT or "float(" in fix)
    size = re.fullmatch(r"Write float\((\w+)\)( [<>]=? \d{1,3})", fix)
    length = f" if each is a number, or len({size[1]}){size[2]} for the length" if size else ""
    return length or (", or declare its type in read.options.types" if is_cast else "")


def _check_replaced(step: Step, before: pa.Table, after: pa.Table) -> None:
    """Raise UnsuitableTypes if a step with a condition gives a column an incompatible type. The
    rows that the step skips keep their old values, so the column must fit both types."""
    replaced = {*step.facts.adds} & {*before.column_names} & {*after.column_names}
    for name in sorted(replaced if step.condition is not None else ()):
        old, new = (table.schema.field(name).type for table in (before, after))
        if unify_types(old, new) is None:
            raise UnsuitableTypes(
                f"step '{step.name}': column '{name}' is {old} in the rows that it skips, and "
                f"{new} in the others. Give its result another name"
            )


def _columns_after(step: Step, known: pa.Table) -> pa.Table:
    """Return the columns of known type after a step, as a table without rows. `known` is such a
    table before the step. Raises UnsuitableTypes if the step cannot read its columns."""
    after = class_of(step).check_types(step.name, getattr(step, step.kind), known)
    if after is not None:
        return after
    after = result_without_rows(step, known)
    unknown = [field.name for field in after.schema if pa.types.is_null(field.type)]
    return after.drop_columns(unknown)
