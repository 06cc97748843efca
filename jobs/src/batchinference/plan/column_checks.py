"""Checks that all columns exist that steps or the output use. Gives advice for wrong names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from batchinference.spec.column_types import ColumnType
from batchinference.spec.expression import (
    CLOCKS,
    PARAMETER_FIX,
    code_of,
    columns_read_by,
    is_part_of_column,
    keys_of,
    names_compared_in,
    root_of,
)
from batchinference.spec.expression_translation import ROWS, translated
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.problems import Problem, closest, did_you_mean
from batchinference.spec.reserved import OWN_PREFIX
from batchinference.spec.steps import Step, to_alias
from batchinference.spec.write import Write, WriteNumbered
from batchinference.spec.write.files import WriteDirectories

_UNKNOWN = "but the columns here are"  # marks messages of `_unknown_column`
_ADD_COLUMN = "Add a column with a step addColumns, such as {{value: {}}}, and use its name here"
_NO_DIRECTORIES = (
    *("decimal", "time", "duration", "binary", "large_binary", "fixed_size_binary"),
    *("map", "extension", "month_"),
)
"""The beginnings of the names of types whose values do not name directories."""
_CONSTANTS = ("true", "false", "null", "none", "nan")


def check_columns(spec: BatchInferenceSpec, columns: list[str] | None) -> Iterator[Problem]:
    """Yield the problems with the columns that steps and the output use. `columns` are the input
    columns; None if unknown. A wrong option of `read` may be the cause of an unknown column. If no
    step reads an input column, only the problem with this option is yielded."""
    problems = _column_problems(spec, columns)  # lazy: the caller may need only the first problems
    first = next(problems, None)
    if first is None:
        return
    reads_some = any({*step.facts.reads} & {*(columns or ())} for step in spec.steps)
    is_unknown = first.path.startswith("spec.steps") and _UNKNOWN in first.message
    if is_unknown and not reads_some and (wrong := spec.read.wrong_option(columns or [])):
        yield Problem(f"spec.read.{wrong[0]}", wrong[1])
        return
    yield first
    yield from problems


def _column_problems(spec: BatchInferenceSpec, columns: list[str] | None) -> Iterator[Problem]:
    """Yield the problems with the columns that steps and the output use. After a step with user
    code, all columns are unknown until a step selects columns. If a later step reads a column that
    was not selected, the selecting step may have misspelled its name."""
    made: list[str] = []
    selection: dict[str, str] = {}
    removed: dict[str, str] = {}
    for index, step in enumerate(spec.steps):
        path = f"spec.steps[{index}].{to_alias(step.kind)}"
        fields = _fields_of(_known_types(spec.steps[:index])) if step.facts.expressions else {}
        for message in (*_reserved_names(step), *_name_conflicts(step, columns or (), made)):
            yield Problem(path, message)
        if columns is not None:
            yield from _missing_columns(path, step, columns, fields | removed, selection)
        else:
            selection = dict.fromkeys(step.facts.selects or (), path)
        after, chosen = step.facts.columns_after(made) or [], step.facts.selects
        made = [name for name in after if chosen is None or name in made]
        before, columns = columns or [], step.facts.columns_after(columns)
        gone = {*before} - {*(before if columns is None else columns)}
        removed |= {name: _fix_of_removed(step, name) for name in gone}
    if columns == []:
        yield Problem("spec.steps", "they drop every column: nothing is left to write")
    else:
        yield from _check_write(spec.write, columns)
        yield from _check_first_rows(spec, columns)
    yield from partition_problems(spec.write, _known_types(spec.steps))


def _fix_of_removed(step: Step, column: str) -> str:
    """Return the fix for a later step that reads a column which `step` renames or removes."""
    if new := step.facts.renames.get(column):
        return f": step '{step.name}' renames it. Name it '{new}' here"
    return f": step '{step.name}' removes it. Keep it there, or move that step behind this one"


def _missing_columns(
    path: str, step: Step, columns: list[str], fixes: Mapping[str, str], chosen: dict[str, str]
) -> Iterator[Problem]:
    """Yield a problem for each missing column that the step at `path` reads. `fixes` has the known
    fixes by column. `chosen` has the columns that were selected while the columns were unknown,
    each with the path of the step that selected it."""
    for column in sorted({*step.facts.reads} - {*columns}):
        near = closest(column, columns)  # computed once, because it is slow
        if near in chosen and column not in chosen:
            what = f"it names column '{near}', but step '{step.name}' reads column '{column}'"
            yield Problem(chosen[near], f"{what}; did you mean '{column}'?")
        elif step.when is not None and column in columns_read_by(step.when):
            message = _missing_in_condition(step, column, columns, near)
            yield Problem(f"{path.rpartition('.')[0]}.when", message)
        else:
            yield Problem(path, _missing_column(step, column, columns, fixes, near))


def replaced_columns(spec: BatchInferenceSpec, columns: list[str] | None) -> Iterator[str]:
    """Yield a message for each step result that replaces a column of the input or of an earlier
    step. `columns` are the known input columns. Any other column that a step reads also counts as
    such."""
    writers: dict[str, str] = dict.fromkeys(columns or (), "the input")
    for step in spec.steps:
        writers = dict.fromkeys(step.facts.reads, "the input") | writers
        outputs = [step.facts.result, *step.facts.adds] if step.facts.result else []
        for output in dict.fromkeys(name for name in outputs if name in writers):
            yield (
                f"step '{step.name}' replaces column '{output}' of {writers[output]}. Give its "
                "output another name to keep both"
            )
        writers = _writers_after(step, writers)


def _writers_after(step: Step, writers: dict[str, str]) -> dict[str, str]:
    """Return the source of each known column after a step: the input, or the name of a step."""
    facts, own = step.facts, f"step '{step.name}'"
    if facts.user_code:
        return {**writers, facts.result: own} if facts.result else {}
    before = {new: old for old, new in facts.renames.items()}
    names = facts.columns_after(list(writers)) or []
    sources = {name: writers.get(before.get(name, name), "the input") for name in names}
    return sources | dict.fromkeys(facts.adds, own)


def _fields_of(types: Mapping[str, ColumnType]) -> dict[str, str]:
    """Return a fix such as `. Write column.field` for each struct field, by field name."""
    return {
        field: f". Write {code_of(name)}.{field}"
        for name, kind in types.items()
        for field in (kind if isinstance(kind, dict) else ())
    }


def _check_write(write: Write, columns: list[str] | None) -> Iterator[Problem]:
    """Yield the problems with the columns that the output uses."""
    known = columns or []
    for field, named in write.column_fields.items() if columns is not None else ():
        takes_parts = field == "partitionBy" and isinstance(write, WriteDirectories)
        for column in named:
            is_part = takes_parts and is_part_of_column(column) and root_of(column) in known
            if column not in known and not is_part:
                near, what = closest(column, known), f"it names column '{column}'"
                yield Problem(f"spec.write.{field}", _unknown_column(what, column, known, near))
    if isinstance(write, WriteNumbered) and write.row_number in known:
        message = f"there is a column '{write.row_number}' already. Choose another name"
        yield Problem("spec.write.rowNumber", message)
    chosen = write.columns_needed or columns
    yield from _check_case(write, chosen or ())
    partition_columns = set(write.column_fields.get("partitionBy", ()))
    if chosen and partition_columns.issuperset(chosen):
        message = "every column becomes a directory: nothing is left to write"
        yield Problem("spec.write.partitionBy", message)


def _check_first_rows(spec: BatchInferenceSpec, columns: list[str] | None) -> Iterator[Problem]:
    """Yield a problem for each column that `gate` or a cascade reads, but output files lack."""
    directories = spec.write.column_fields.get("partitionBy", ())
    chosen = spec.write.columns_needed or columns
    in_files = [name for name in chosen or () if name not in directories]
    for field, needed in spec.first_rows_columns.items() if chosen is not None else ():
        for column in sorted(needed - set(in_files)):
            near, what = closest(column, in_files), f"it reads column '{column}' of the output"
            message = _unknown_column(what, column, in_files, near)
            yield Problem(f"spec.{field}", message)


def partition_problems(write: Write, types: Mapping[str, ColumnType]) -> Iterator[Problem]:
    """Yield a problem for each column of `partitionBy` whose values cannot name a directory, and
    for each missing part of a column. `types` are the known types of columns."""
    for column in write.column_fields.get("partitionBy", ()):
        if column not in types and column != root_of(column) and not is_part_of_column(column):
            continue  # a name with `.` or `[` that is no part of a column
        kind = types.get(column, _part_type(column, types))
        if kind is None:
            root, name = types[root_of(column)], root_of(column)
            fields = list(root) if isinstance(root, dict) else []
            fix = did_you_mean(str(keys_of(column)[0]), fields)
            listed = ", ".join(fields) or "none"
            message = f"column '{column}' is not part of '{name}'. Its fields: {listed}{fix}"
            yield Problem("spec.write.partitionBy", message)
        elif not isinstance(kind, str):
            what = f"a struct of {' and '.join(kind)}" if isinstance(kind, dict) else "a list"
            fix = "Choose a column with few values, or remove partitionBy"
            inner: ColumnType = kind
            while isinstance(inner, list):
                (inner,) = inner
            if isinstance(inner, dict):
                value = _scalar_of(code_of(column) if column in types else column, kind)
                fix = _ADD_COLUMN.format(value)
            message = f"column '{column}' holds {what}, which cannot name directories. {fix}"
            yield Problem("spec.write.partitionBy", message)
        elif kind.startswith(_NO_DIRECTORIES) and write.mode != "merge":
            fix = "Make it text in a step, or choose another column"
            message = f"column '{column}' is {kind}, which cannot name directories. {fix}"
            yield Problem("spec.write.partitionBy", message)


def _part_type(column: str, types: Mapping[str, ColumnType]) -> ColumnType | None:
    """Return the type of a part of a column such as `name.field`; None if there is no such part.
    Empty if the type of the column is unknown."""
    kind: ColumnType | None = types.get(root_of(column), "")
    for key in keys_of(column) if kind else ():
        if isinstance(kind, dict):
            kind = kind.get(str(key))
        else:
            kind = kind[0] if isinstance(kind, list) and isinstance(key, int) else None
    return kind


def _known_types(steps: Sequence[Step]) -> dict[str, ColumnType]:
    """Return the known types of columns after all steps."""
    types: dict[str, ColumnType] = {}
    for facts in (step.facts for step in steps):
        changed = {*facts.columns_added, *facts.renames, *facts.drops}
        chosen = {*types} if facts.selects is None else {*facts.selects}
        renamed = {new: types[old] for old, new in facts.renames.items() if old in types}
        remaining = {name: types[name] for name in types if name in chosen - changed}
        results = {name: kind for name, kind in facts.adds.items() if kind is not None}
        types = {} if facts.user_code else remaining | renamed | results
    return types


def _scalar_of(expression: str, kind: ColumnType) -> str:
    """Return an expression for the first scalar in the list or struct `expression`."""
    if isinstance(kind, str):
        return expression
    if isinstance(kind, list):
        return _scalar_of(f"{expression}[0]", kind[0])
    name, field = next(iter(kind.items()))
    return _scalar_of(f"{expression}.{name}", field)


def _check_case(write: Write, columns: Iterable[str]) -> Iterator[Problem]:
    """Yield a problem for columns that differ only in case, if the table ignores case."""
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
    """Return a message for each added column whose name is reserved."""
    reserved = f"columns that begin with '{OWN_PREFIX}' are reserved"
    return [
        f"step '{step.name}' adds column '{added}', but {reserved}"
        for added in step.facts.columns_added
        if added.startswith(OWN_PREFIX)
    ]


def _name_conflicts(step: Step, columns: Sequence[str], made: Sequence[str]) -> Iterator[str]:
    """Yield a message for each column that a step adds although there is a column of this name.
    `made` are the columns that earlier steps have added."""
    facts, renamed = step.facts, step.facts.renames
    for old, new in renamed.items():
        if new in columns and new not in renamed:
            what = f"renames '{old}' to '{new}', and there is a column '{new}' already"
            yield f"step '{step.name}' {what}. Write {{OLD: NEW}}, with another new name"
    for name in facts.fixed_names:
        if name in (made if facts.replaces_input else columns):
            yield (
                f"step '{step.name}' adds column '{name}', and there is one already. Rename it "
                "before this step with renameColumns"
            )


def _missing_in_condition(step: Step, column: str, columns: list[str], near: str | None) -> str:
    if column not in (step.facts.result, *step.facts.adds):
        fix = _fix_of_expression(column, columns, [step.when or ""], near, has_results=False)
        return _unknown_column(f"it reads column '{column}'", column, columns, near, fix)
    what = f"it is decided before the step runs, and it reads '{column}', a result of this step"
    return f"{what}. Use one of {', '.join(columns)}"


def _missing_column(
    step: Step, column: str, columns: list[str], fixes: Mapping[str, str], near: str | None
) -> str:
    """Return the message about a column that a step reads, but that does not exist before it."""
    expressions, fix = list(step.facts.expressions), fixes.get(column, "")
    if expressions and not fix:
        has_results = bool(step.facts.adds)
        fix = _fix_of_expression(column, columns, expressions, near, has_results=has_results)
    if not fix and column in step.facts.adds and expressions:
        fix = f". '{column}' is a result of this step. Compute from it in a later step"
    texts = [each for each in expressions if column in re.split("[-./: ]", each)]
    if not fix and texts and step.facts.adds and not near:
        fix = f". Use one of them, or write a text in quotes: \"'{texts[0]}'\""
    what = f"step '{step.name}' reads column '{column}'"
    return _unknown_column(what, column, columns, near, fix)


def _fix_of_expression(
    column: str, columns: list[str], expressions: list[str], near: str | None, *, has_results: bool
) -> str:
    """Return the fix for a name in `expressions` that is no column; empty if none is known. `near`
    is the most similar column. `has_results` says whether the expressions compute new columns,
    because only then may an expression be a constant."""
    reader = next(each for each in expressions if column in columns_read_by(each))
    if column.lower() in CLOCKS:
        written = f"Write {translated(reader)}, and declare the parameter 'since'"
        return f". There is no clock. {written if 'params.since' in written else PARAMETER_FIX}"
    if column == "params":
        return ". Write " + re.sub(r"\bparams\.(\w+)", r"{{ params.\1 }}", reader)
    for name in columns:
        if not name.isidentifier() and column in re.findall(r"\w+", name):
            return f". Write {code_of(name)} for that column"
    if column in ROWS or not near or column.lower() in _CONSTANTS:
        rows = (*ROWS, column)
        readers = [each for each in expressions if column in columns_read_by(each)]
        for each in (translated(reader, rows) for reader in readers):
            is_constant = each in ("True", "False", "None")
            if has_results if is_constant else _reads_only(each, columns):
                return f". Write {each}"
    if not near and any(column in names_compared_in(each) for each in expressions):
        return f". Use one of them, or write a text in quotes: '{column}'"
    return ""


def _reads_only(text: str, columns: list[str]) -> bool:
    try:
        return columns_read_by(text) <= {*columns}
    except ValueError:
        return False


def _unknown_column(
    what: str, column: str, columns: list[str], near: str | None, fix: str = ""
) -> str:
    known = ", ".join(columns) or "none"
    if not fix and is_part_of_column(column) and root_of(column) in columns:
        fix = f". {_ADD_COLUMN.format(column)}"
    if not fix and re.search(r"[-(%*+/<>=]", column):
        fix = ". Compute it in a step addColumns, and use the name of the new column here"
    other = f"; did you mean '{near}'?" if near else ". Use one of them" if columns else ""
    return f"{what}, {_UNKNOWN} {known}{fix or other}"
