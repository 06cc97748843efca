"""Checks the types of the columns that expressions use, before the job reads rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from batchinference.pipeline.expression import UnsuitableTypes
from batchinference.pipeline.expression.advice import CONVERT
from batchinference.pipeline.steps import class_of
from batchinference.pipeline.steps.no_rows import result_without_rows
from batchinference.pipeline.steps.relational import Filter
from batchinference.pipeline.steps.user_code import UserCode
from batchinference.pipeline.type_widening import unify_types
from batchinference.spec.problems import Problem, did_you_mean
from batchinference.spec.steps import Step, to_alias


def type_problems(steps: Sequence[Step], types: Mapping[str, pa.DataType]) -> Iterator[Problem]:
    """Yield the problem of the first expression that does not suit the types of the columns: those
    of the input, and of the results of earlier steps. Columns of unknown type are not checked, and
    no step after user code."""
    known = pa.schema(list(types.items())).empty_table()
    for index, step in enumerate(steps):
        field = "cascade" if step.cascade else "when"
        try:
            if (condition := step.condition) is not None:
                Filter(step.name, condition, field).check_columns(known)
            field = to_alias(step.kind)
            before, known = known, _after(step, known)
            _check_kept(step, before, known)
        except UnsuitableTypes as error:
            path = f"spec.steps[{index}].{field}"
            yield Problem(path, f"{error.message}{_other_fix(error.message, types)}")
            return
        if step.facts.user_code:
            return


def code_problems(steps: Sequence[Step], columns: list[str] | None) -> Iterator[Problem]:
    """Yield the first column that code of the user reads and that does not exist, or that a step
    after it reads and that the code does not return. `columns` are those of the input; None if they
    are unknown."""
    before, returned = columns, ("", "")
    for index, step in enumerate(steps):
        code = step.python
        reads = UserCode.reads(step.name, code) if code else dict.fromkeys(step.facts.reads, 0)
        if columns is not None and (code or returned[0]):
            for column in (name for name in reads if name not in columns):
                is_dropped = column in (before or ()) and returned[0]
                fix = f". {returned[1]}" if is_dropped else did_you_mean(column, columns)
                what = f"step '{step.name}' reads column '{column}', and {returned[0]} returns only"
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
        before, after = columns, UserCode.columns_after(step.name, code)
        columns = after[0] if after and not step.condition else None
        returned = (f"step '{step.name}'", after[1]) if after else ("", "")


def _other_fix(message: str, types: Mapping[str, pa.DataType]) -> str:
    """Return a second fix if a column of the input must be converted, else an empty text."""
    of_input = any(f"{name} is {kind}" in message for name, kind in types.items())
    fix = message.rpartition(". ")[2]
    is_cast = of_input and (fix == CONVERT or "float(" in fix)
    size = re.fullmatch(r"Write float\((\w+)\)( [<>]=? \d{1,3})", fix)
    other = f" if each is a number, or len({size[1]}){size[2]} for the length" if size else ""
    return other or (", or declare its type in read.options.types" if is_cast else "")


def _check_kept(step: Step, before: pa.Table, after: pa.Table) -> None:
    """Raise UnsuitableTypes if a step replaces the values of a column by values of another type,
    and keeps the values of the rows that it skips."""
    both = {*step.facts.adds} & {*before.column_names} & {*after.column_names}
    for name in sorted(both if step.condition is not None else ()):
        old, new = (table.schema.field(name).type for table in (before, after))
        if unify_types(old, new) is None:
            raise UnsuitableTypes(
                f"step '{step.name}': column '{name}' is {old} in the rows that it skips, and "
                f"{new} in the others. Give its result another name"
            )


def _after(step: Step, known: pa.Table) -> pa.Table:
    """Return the columns of known type after a step, without rows. Raises UnsuitableTypes."""
    checked = class_of(step).check_types(step.name, getattr(step, step.kind), known)
    if checked is not None:
        return checked
    after = result_without_rows(step, known)
    unknown = [field.name for field in after.schema if pa.types.is_null(field.type)]
    return after.drop_columns(unknown)
