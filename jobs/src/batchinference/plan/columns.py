"""Determines the columns before each step, and checks that the columns that it reads exist."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from batchinference.spec.column_types import ColumnType
from batchinference.spec.expression import names_compared_in, written
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.problems import Problem, did_you_mean
from batchinference.spec.reserved import OWN_PREFIX
from batchinference.spec.steps import Step, to_alias
from batchinference.spec.write import Write, WriteNumbered

_CONSTANTS = {"true": "True", "false": "False", "null": "None", "none": "None"}


def check_columns(spec: BatchInferenceSpec, columns: list[str] | None) -> Iterator[Problem]:
    """Yield the problems with the columns that steps and the output use.

    The columns after a step with user code are unknown. Missing columns are not detected from
    there until the next step that selects columns.
    """
    made: list[str] = []
    for index, step in enumerate(spec.steps):
        for message in _step_problems(step, columns, made):
            yield Problem(f"spec.steps[{index}].{to_alias(step.kind)}", message)
        columns, made = step.facts.columns_after(columns), step.facts.columns_after(made) or []
    if columns == []:
        yield Problem("spec.steps", "they drop every column: nothing is left to write")
    else:
        yield from _check_write(spec.write, columns)
        yield from _check_first_rows(spec, columns)
    yield from _check_partitions(spec)


def replaced_columns(spec: BatchInferenceSpec, columns: list[str] | None) -> Iterator[str]:
    """Yield a note on each result of a step that replaces a column of the input or of an earlier
    step. `columns` are those of the input; if they are unknown, those that a step reads count."""
    writers: dict[str, str] = dict.fromkeys(columns or (), "the input")
    for step in spec.steps:
        writers = dict.fromkeys(step.facts.reads, "the input") | writers
        output = step.facts.result
        if output in writers:
            yield (
                f"step '{step.name}' replaces column '{output}' of {writers[output]}. Give its "
                "output another name to keep both"
            )
        writers = _writers_after(step, writers)


def _writers_after(step: Step, writers: dict[str, str]) -> dict[str, str]:
    """Return who wrote each known column after a step."""
    facts, own = step.facts, f"step '{step.name}'"
    if facts.user_code:
        return {**writers, facts.result: own} if facts.result else {}
    before = {new: old for old, new in facts.renames.items()}
    names = facts.columns_after(list(writers)) or []
    kept = {name: writers.get(before.get(name, name), "the input") for name in names}
    return kept | dict.fromkeys(facts.adds, own)


def _step_problems(step: Step, columns: list[str] | None, made: list[str]) -> Iterator[str]:
    """Yield the problems with the columns that a step reads and adds. `made` are those of earlier
    steps."""
    yield from _reserved_names(step)
    yield from _name_conflicts(step, columns or (), made)
    if columns is not None:
        for column in sorted(set(step.facts.reads) - set(columns)):
            yield _missing_column(step, column, columns)


def _check_write(write: Write, columns: list[str] | None) -> Iterator[Problem]:
    """Yield the problems with the columns that the output uses."""
    for field, named in write.column_fields.items():
        for column in named if columns is not None else ():
            if columns is not None and column not in columns:
                message = _unknown_column(f"it names column '{column}'", column, columns)
                yield Problem(f"spec.write.{field}", message)
    if isinstance(write, WriteNumbered) and write.row_number in (columns or ()):
        message = f"there is a column '{write.row_number}' already. Choose another name"
        yield Problem("spec.write.rowNumber", message)
    chosen = write.columns_needed or columns
    yield from _check_case(write, chosen or ())
    partition_columns = set(write.column_fields.get("partitionBy", ()))
    if chosen and partition_columns.issuperset(chosen):
        message = "every column becomes a directory: nothing is left to write"
        yield Problem("spec.write.partitionBy", message)


def _check_first_rows(spec: BatchInferenceSpec, columns: list[str] | None) -> Iterator[Problem]:
    """Yield the columns that a gate or a cascade reads, and that files of the output lack."""
    directories = spec.write.column_fields.get("partitionBy", ())
    written = spec.write.columns_needed or columns
    in_files = [name for name in written or () if name not in directories]
    for field, needed in spec.first_rows_columns.items() if written is not None else ():
        for column in sorted(needed - set(in_files)):
            message = _unknown_column(f"it reads column '{column}' of the output", column, in_files)
            yield Problem(f"spec.{field}", message)


def _check_partitions(spec: BatchInferenceSpec) -> Iterator[Problem]:
    """Yield the results of steps that are no values that can name a directory."""
    types = _known_types(spec.steps)
    for column in spec.write.column_fields.get("partitionBy", ()):
        kind = types.get(column, "")
        if not isinstance(kind, str):
            what = f"a struct of {' and '.join(kind)}" if isinstance(kind, dict) else "a list"
            message = (
                f"column '{column}' holds {what}, which cannot name directories. Add a column with "
                f"a step addColumns, such as {{value: {_scalar_of(written(column), kind)}}}, and "
                "name that column"
            )
            yield Problem("spec.write.partitionBy", message)


def _known_types(steps: Sequence[Step]) -> dict[str, ColumnType]:
    """Return the columns after all steps that hold a result of known type."""
    types: dict[str, ColumnType] = {}
    for facts in (step.facts for step in steps):
        changed = {*facts.columns_added, *facts.renames}
        renamed = {new: types[old] for old, new in facts.renames.items() if old in types}
        kept = {name: kind for name, kind in types.items() if name not in changed}
        made = {name: kind for name, kind in facts.adds.items() if kind is not None}
        types = {} if facts.user_code else kept | renamed | made
    return types


def _scalar_of(expression: str, kind: ColumnType) -> str:
    """Return the expression of the first single value within a value of this type."""
    if isinstance(kind, str):
        return expression
    if isinstance(kind, list):
        return _scalar_of(f"{expression}[0]", kind[0])
    name, field = next(iter(kind.items()))
    return _scalar_of(f"{expression}.{name}", field)


def _check_case(write: Write, columns: Iterable[str]) -> Iterator[Problem]:
    """Yield the columns that a table whose names have no case cannot tell apart."""
    known: dict[str, str] = {}
    for column in columns if write.CASELESS else ():
        other = known.setdefault(column.lower(), column)
        if other != column:
            message = (
                f"columns '{other}' and '{column}' are one name for the format {write.format}, "
                "which ignores case. Rename one of them in a step renameColumns"
            )
            yield Problem("spec.write.format", message)


def _reserved_names(step: Step) -> list[str]:
    """Return messages for added columns whose names are reserved."""
    reserved = f"columns that begin with '{OWN_PREFIX}' are reserved"
    return [
        f"step '{step.name}' adds column '{added}', but {reserved}"
        for added in step.facts.columns_added
        if added.startswith(OWN_PREFIX)
    ]


def _name_conflicts(step: Step, columns: Sequence[str], made: Sequence[str]) -> Iterator[str]:
    facts, renamed = step.facts, step.facts.renames
    for old, new in renamed.items():
        if new in columns and new not in renamed:
            what = f"renames '{old}' to '{new}', and there is a column '{new}' already"
            yield f"step '{step.name}' {what}"
    for name in facts.fixed_names:
        if name in (made if facts.replaces_input else columns):
            yield (
                f"step '{step.name}' adds column '{name}', and there is one already. Rename it "
                "before this step with renameColumns"
            )


def _missing_column(step: Step, column: str, columns: list[str]) -> str:
    expressions = list(step.facts.expressions)
    fix = _fix_of_expression(column, columns, expressions) if expressions else ""
    if column in step.facts.adds and expressions:
        fix = f". '{column}' is a result of this step. Compute from it in a later step"
    is_value = column in expressions and step.facts.adds
    if not fix and is_value and not did_you_mean(column, columns):
        fix = f". Use one of them, or write a text in quotes: \"'{column}'\""
    return _unknown_column(f"step '{step.name}' reads column '{column}'", column, columns, fix)


def _fix_of_expression(column: str, columns: list[str], expressions: list[str]) -> str:
    """Return the fix of a name in expressions that is no column, or an empty text."""
    for name in columns:
        if not name.isidentifier() and column in re.findall(r"\w+", name):
            return f". Write {written(name)} for that column"
    if constant := _CONSTANTS.get(column.lower()):
        return f". Write {constant}"
    compared = any(column in names_compared_in(each) for each in expressions)
    if compared and not did_you_mean(column, columns):
        return f". Use one of them, or write a text in quotes: '{column}'"
    return ""


def _unknown_column(what: str, column: str, columns: list[str], fix: str = "") -> str:
    known = ", ".join(columns) or "none"
    struct = column.partition(".")[0]
    if not fix and struct != column and struct in columns:
        fix = f". Add a column with a step addColumns, such as {{value: {column}}}, and name it"
    if not fix and re.search(r"[-(%*+/<>=]", column):
        fix = ". Compute it in a step addColumns, and name the new column"
    if not fix and any(re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", name) for name in columns):
        fix = ". Use one of them. If the file has no header, set read.options.columnNames"
    if not fix and len(columns) == 1 and columns[0].startswith("#"):
        fix = ". Set read.options.comment to '#'"
    fix = fix or did_you_mean(column, columns) or (". Use one of them" if columns else "")
    return f"{what}, but the columns here are {known}{fix}"
