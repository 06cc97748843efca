"""Compares the first rows of the output with the expectation of the gate (`spec.gate`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.arrow import empty_table
from batchinference.pipeline.errors import GateFailed
from batchinference.pipeline.expression import ColumnExpression, UnsuitableTypes
from batchinference.pipeline.first_rows.row_values import values_of_rows
from batchinference.pipeline.output.output_rows import type_as_read
from batchinference.pipeline.output.python_rows import Row
from batchinference.pipeline.type_widening import is_list, is_number, is_tensor, is_text
from batchinference.spec.gate import Expectation, Gate, Measure, parse_expectation
from batchinference.spec.write import Write
from batchinference.text import counted


def check_gate(gate: Gate, rows: Sequence[Row]) -> str:
    """Return the measured values of the first rows as text. Raises GateFailed if the expectation of
    the gate is not met or cannot be computed."""
    expectation = parse_expectation(gate.expect)
    try:
        expressions = {text: measure.expression for text, measure in expectation.measures.items()}
        values = values_of_rows(expressions, rows)
        for text, measure in expectation.measures.items():
            _check_measure(measure, values.column(text).type)
        measured = {
            text: _AGGREGATES[measure.function](values.column(text))
            for text, measure in expectation.measures.items()
        }
        condition = values_of_rows({gate.expect: expectation.condition}, [measured])
        (holds,) = condition.column(gate.expect).to_pylist()
    except UnsuitableTypes as error:
        message = _with_measures(expectation, error.message)
        raise GateFailed(f"spec.gate.expect: {message}") from None
    except (pa.ArrowException, TypeError) as error:
        raise GateFailed(f"spec.gate.expect: {gate.expect} cannot be computed: {error}") from None
    finding = ", ".join(f"{text} is {_shown(value)}" for text, value in measured.items())
    finding += f" in {counted(len(rows), 'row', ',')}"
    if holds is not True:
        raise GateFailed(
            f"spec.gate expects {gate.expect}, but {finding}. No further rows were computed. "
            "Correct the steps and start over with --restart (on a cluster, write.mode: "
            "overwrite); or change gate.expect and run the job again: it resumes with these rows"
        )
    return f"gate: {finding}"


def type_problem(gate: Gate, write: Write, columns: pa.Schema) -> str:
    """Return why the expectation of a gate can never be computed; empty if it may be. `columns` are
    the known columns of the output. The null type stands for an unknown type."""
    expectation = parse_expectation(gate.expect)
    measures = expectation.measures.items()
    types = dict.fromkeys(expectation.columns, pa.null())
    for name in types.keys() & {*columns.names}:
        types[name] = type_as_read(write, columns.field(name).type)
    rows = empty_table(pa.schema([*types.items()]))
    try:
        results = {text: _result_type(text, measure, rows) for text, measure in measures}
        condition = ColumnExpression(gate.expect, expectation.condition)
        condition(empty_table(pa.schema([*results.items()])))
    except UnsuitableTypes as error:
        return _with_measures(expectation, error.message)
    return ""


def _result_type(text: str, measure: Measure, rows: pa.Table) -> pa.DataType:
    """Return the type of a measure of rows; null if it is unknown. Raises UnsuitableTypes."""
    kind = ColumnExpression(text, measure.expression)(rows).type
    _check_measure(measure, kind)
    return kind if pa.types.is_null(kind) else _TYPES.get(measure.function, kind)


def _with_measures(expectation: Expectation, message: str) -> str:
    """Return a message about the condition in the user's words: `mean(n)`, not `col('mean(n)')`."""
    for text, measure in expectation.measures.items():
        message = message.replace(f"col({text!r})", text)
        # the largest text is not the largest number
        numbers = f"{measure.function}(float({measure.expression}))"
        message = message.replace(f"float({text})", numbers)
    return message


def _check_measure(measure: Measure, kind: pa.DataType) -> None:
    """Raise UnsuitableTypes if a function cannot measure values of this type."""
    function, expression = measure.function, measure.expression
    is_condition = pa.types.is_boolean(kind) or pa.types.is_null(kind)
    what = f"{function}({expression}) cannot be computed: the values are {kind}"
    if function in ("count", "fraction") and not is_condition:
        fix = f"Write a condition, such as {function}({expression} is not None)"
        raise UnsuitableTypes(f"{what}, and {function} takes true or false. {fix}")
    if function == "mean" and not (is_number(kind) or is_condition):
        raise UnsuitableTypes(f"{what}, and mean takes numbers. {_fix_of(measure, kind)}")
    if pa.types.is_nested(kind) or is_tensor(kind):
        raise UnsuitableTypes(f"{what}, which have no order. {_fix_of(measure, kind)}")


def _fix_of(measure: Measure, kind: pa.DataType) -> str:
    """Return the fix for a measure of values that are not numbers."""
    function, expression = measure.function, measure.expression
    length = f"{function}(len({expression})) for the length"
    if is_text(kind):
        return f"Write {function}(float({expression})) if each is a number, or {length}"
    if is_list(kind) or is_tensor(kind):
        return f"Write {function}({expression}[0]) for an item, or {length}"
    if pa.types.is_struct(kind) and kind.num_fields:
        return f"Name a field of it, such as {function}({expression}.{kind.field(0).name})"
    return "Measure an expression that gives numbers"


def _count(values: pa.ChunkedArray) -> int:
    """Return the number of true values."""
    return pc.sum(values.cast(pa.bool_())).as_py() or 0


_TYPES = {"count": pa.int64(), "fraction": pa.float64(), "mean": pa.float64()}
"""The types of results. For other functions, it is the type of the values."""
_AGGREGATES: dict[str, Callable[[pa.ChunkedArray], Any]] = {
    "count": _count,
    "fraction": lambda values: _count(values) / len(values) if len(values) else None,
    "mean": lambda values: None if values.null_count == len(values) else pc.mean(values).as_py(),
    "min": lambda values: pc.min(values).as_py(),
    "max": lambda values: pc.max(values).as_py(),
}


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
