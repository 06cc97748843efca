"""Compares the first rows of the output with the expectation of the gate (`spec.gate`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.errors import GateFailed
from batchinference.pipeline.expression import UnsuitableTypes
from batchinference.pipeline.first_rows.row_values import values_of_rows
from batchinference.pipeline.output.python_rows import Row
from batchinference.spec.gate import Gate, parse_expectation
from batchinference.text import counted


def check_gate(gate: Gate, rows: Sequence[Row]) -> str:
    """Return the measured values of the first rows as text. Raises GateFailed if the expectation of
    the gate is not met or cannot be computed."""
    expectation = parse_expectation(gate.expect)
    try:
        expressions = {text: measure.expression for text, measure in expectation.measures.items()}
        values = values_of_rows(expressions, rows)
        measured = {
            text: _AGGREGATES[measure.function](values.column(text))
            for text, measure in expectation.measures.items()
        }
        (holds,) = values_of_rows({"": expectation.condition}, [measured]).column("").to_pylist()
    except (UnsuitableTypes, pa.ArrowException, TypeError) as error:
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


def _count(values: pa.ChunkedArray) -> int:
    """Return the number of true values. Raises TypeError if the values are not booleans."""
    if not (pa.types.is_boolean(values.type) or pa.types.is_null(values.type)):
        raise TypeError(
            f"count and fraction take a condition, not an expression of type {values.type}"
        )
    return pc.sum(values.cast(pa.bool_())).as_py() or 0


_AGGREGATES: dict[str, Callable[[pa.ChunkedArray], Any]] = {
    "count": _count,
    "fraction": lambda values: _count(values) / len(values) if len(values) else None,
    "mean": lambda values: None if values.null_count == len(values) else pc.mean(values).as_py(),
    "min": lambda values: pc.min(values).as_py(),
    "max": lambda values: pc.max(values).as_py(),
}


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
