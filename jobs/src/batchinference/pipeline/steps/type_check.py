"""Checks the types of the columns that expressions use, before the job reads rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from batchinference.pipeline.arrow import with_column
from batchinference.pipeline.steps.expression import CONVERT, ColumnExpression, UnsuitableTypes
from batchinference.pipeline.steps.no_rows import result_without_rows
from batchinference.pipeline.steps.relational import ExplodeList, Filter
from batchinference.spec.models import TransformersModel
from batchinference.spec.problems import Problem
from batchinference.spec.steps import Step, to_alias

_MEDIA = {
    **dict.fromkeys(("image", "other_image"), "pixels: read.format images or a step decode"),
    "audio": "samples: read.format audio or a step decode",
    "video": "bytes: read.format binary",
}
"""The inputs of models that are no texts, and where their values come from."""


def type_problems(
    steps: Sequence[Step],
    types: Mapping[str, pa.DataType],
    why_text: Callable[[str], str] = lambda _: "",
) -> Iterator[Problem]:
    """Yield the problem of the first expression that does not suit the types of the columns: those
    of the input, and of the results of earlier steps. Columns of unknown type are not checked, and
    no step after user code. `why_text` returns which value makes a column of the input text."""
    known = pa.schema(list(types.items())).empty_table()
    for index, step in enumerate(steps):
        try:
            known = _after(step, known)
        except UnsuitableTypes as error:
            path = f"spec.steps[{index}].{to_alias(step.kind)}"
            message = f"{error.message}{_other_fix(error.message, types)}"
            for name in types:
                if reason := why_text(name):
                    message = message.replace(f"{name} is string", f"{name} is string ({reason})")
            yield Problem(path, message)
            return
        if step.python is not None:
            return


def _other_fix(message: str, types: Mapping[str, pa.DataType]) -> str:
    """Return a second fix if a column of the input must be converted, else an empty text."""
    of_input = any(f"{name} is {kind}" in message for name, kind in types.items())
    is_cast = message.endswith(CONVERT) and of_input
    return ", or declare its type in read.options.types" if is_cast else ""


def _after(step: Step, known: pa.Table) -> pa.Table:
    """Return the columns of known type after a step, without rows. Raises UnsuitableTypes."""
    if step.filter is not None:
        if _are_known(step.filter, known):
            Filter(step.name, step.filter).mask(known)
        return known
    if step.add_columns is not None:
        return _with_columns(step.name, step.add_columns, known)
    _check_inputs(step, known)
    loaded = ExplodeList(step.name, step.explode) if step.explode else None
    after = result_without_rows(step, known, loaded)
    unknown = [field.name for field in after.schema if pa.types.is_null(field.type)]
    return after.drop_columns(unknown)


def _check_inputs(step: Step, known: pa.Table) -> None:
    """Raise UnsuitableTypes if texts are the input of a model that needs pixels or samples."""
    inputs = step.model.inputs if isinstance(step.model, TransformersModel) else {}
    for name, column in inputs.items():
        kind = known.schema.field(column).type if column in known.column_names else None
        if kind in (pa.string(), pa.large_string()) and (fix := _MEDIA.get(name)):
            raise UnsuitableTypes(
                f"step '{step.name}': the input '{name}' is column '{column}', which holds texts. "
                f"Use a column of {fix}"
            )


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
