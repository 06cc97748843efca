"""Computes the first rows of a job alone, and checks them against the gate of its spec."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.commit.row_coverage import common_rows
from batchinference.pipeline.errors import BadInput, GateFailed
from batchinference.pipeline.execution.attempt_run import AttemptEnd, AttemptRun
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.input.planning import (
    MIN_BLOCK_ROWS,
    MIN_BLOCKS,
    MIN_FILES,
    Sizing,
)
from batchinference.pipeline.output.stored_rows import DAMAGE, Row, unreadable
from batchinference.pipeline.output.writers import writer_for
from batchinference.pipeline.row_batch import MissingRows
from batchinference.pipeline.steps.expression import ColumnExpression, UnsuitableTypes
from batchinference.spec.gate import Expectation, Gate, parse_expectation
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.write import WriteTable
from batchinference.text import counted

ROWS_AT_ONCE = 4096
Measured = dict[str, Any]
"""The value of each measure."""


def run_of_sample(gate: Gate | None, run: AttemptRun) -> AttemptRun:
    """Return the run of the rows that a gate must see and that are missing. It is the run itself if
    there is no gate, or if the gate has passed. Raises BadInput if these rows are unknown."""
    if gate is None or run.start.gate:
        return run
    sample = _sample(gate, run, run.start.ends)
    missing = common_rows(run.missing, sample)
    rows = sum((after or 0) - first for ranges in missing.values() for first, after in ranges)
    blocks = max(1, min(MIN_BLOCKS, rows // MIN_BLOCK_ROWS))
    per_file = max(1, min(run.sizing.rows_per_file, rows // MIN_FILES))
    sizing, count = Sizing(blocks, blocks, per_file), RowCount(rows, estimated=False)
    return replace(run, missing=missing, sizing=sizing, count=count, is_sample=True)


def _sample(gate: Gate, run: AttemptRun, ends: Mapping[int, int]) -> MissingRows:
    """Return the rows that a gate must see, as far as they are known."""
    if gate.rows is not None:
        return run.input.first_rows(gate.rows, ends)
    if run.count is None:
        raise BadInput(
            "spec.gate.percent: the number of rows of this input is unknown. Set rows instead"
        )
    return run.input.first_rows(math.ceil(run.count.rows * (gate.percent or 0) / 100), ends)


def checked(spec: BatchInferenceSpec, run: AttemptRun, end: AttemptEnd) -> AttemptEnd:
    """Return the end of an attempt, in whose snapshot the gate has passed if its rows are complete
    now. Raises GateFailed if they are not as the gate expects."""
    gate = spec.gate
    if gate is None or run.start.gate:
        return end
    sample = _sample(gate, run, end.snapshot.ends)
    if common_rows(end.missing, sample):
        return end
    entries = [entry for entry in end.snapshot.entries if _holds_any(entry, sample)]
    rows = _rows_of(spec, run, entries)
    passed = describe_or_fail(gate, rows)
    return replace(end, snapshot=replace(end.snapshot, gate=passed))


def _holds_any(entry: ManifestEntry, sample: MissingRows) -> bool:
    """Return whether an entry holds rows of a sample."""
    held = [*((file, first) for file, first, _ in entry.row_ranges),
            *((file, row) for file, row, _ in entry.shares)]  # fmt: skip
    return any(file in sample and first < (sample[file][-1][1] or 0) for file, first in held)


def _rows_of(
    spec: BatchInferenceSpec, run: AttemptRun, entries: Iterable[ManifestEntry]
) -> Iterator[Row]:
    """Yield the rows of the output that these entries name. Raises BadOutput."""
    write = spec.write
    writer = run.table.parquet if isinstance(write, WriteTable) and run.table else None
    writer = writer or writer_for(write)
    for file in (file for entry in entries for file in entry.data):
        part = run.attempt.layout.data / file.name
        try:
            yield from writer.rows(part)
        except DAMAGE as error:
            raise unreadable(part, error) from None


def describe_or_fail(gate: Gate, rows: Iterable[Row]) -> str:
    """Return what was measured in rows of the output, as text. Raises GateFailed if they are not as
    the gate expects."""
    expectation = parse_expectation(gate.expect)
    try:
        measured, number = measure(expectation, rows)
        table = pa.table({name: pa.array([value]) for name, value in measured.items()})
        (holds,) = _values(expectation.condition, table).to_pylist()
    except (UnsuitableTypes, pa.ArrowException, TypeError) as error:
        raise GateFailed(
            f"spec.gate.expect: {gate.expect} cannot be computed for the first rows: {error}"
        ) from None
    values = ", ".join(f"{name} is {_shown(value)}" for name, value in measured.items())
    text = f"{values} in {counted(number, 'row', ',')}"
    if holds is not True:
        raise GateFailed(
            f"spec.gate expects {gate.expect}, but {text}. No other rows were computed. Correct "
            "the steps; or change gate.expect and run the job again: it resumes with these rows"
        )
    return f"gate: {text}"


def measure(expectation: Expectation, rows: Iterable[Row]) -> tuple[Measured, int]:
    """Return the value of each measure, and the number of rows. A value is None if there is none.
    Raises UnsuitableTypes, and errors of Arrow for single values."""
    names, found = sorted(expectation.columns), list[pa.Table]()
    number, remaining = 0, iter(rows)
    while part := list(itertools.islice(remaining, ROWS_AT_ONCE)):
        number += len(part)
        table = pa.table({name: pa.array([row.get(name) for row in part]) for name in names})
        values = {
            name: _values(measured.expression, table)
            for name, measured in expectation.measures.items()
        }
        found.append(pa.table(values))
    if not found:
        return dict.fromkeys(expectation.measures), 0
    columns = pa.concat_tables(found, promote_options="permissive")
    measures = expectation.measures.items()
    return {name: _AGGREGATES[one.function](columns.column(name)) for name, one in measures}, number


def _values(expression: str, table: pa.Table) -> pa.ChunkedArray:
    return ColumnExpression("spec.gate.expect", expression)(table)


def _count(values: pa.ChunkedArray) -> int:
    if not (pa.types.is_boolean(values.type) or pa.types.is_null(values.type)):
        raise TypeError(f"count and fraction take a condition, and this is {values.type}")
    return pc.sum(values.cast(pa.bool_())).as_py() or 0


_AGGREGATES: dict[str, Callable[[pa.ChunkedArray], Any]] = {
    "count": _count,
    "fraction": lambda values: _count(values) / len(values),
    "mean": lambda values: None if values.null_count == len(values) else pc.mean(values).as_py(),
    "min": lambda values: pc.min(values).as_py(),
    "max": lambda values: pc.max(values).as_py(),
}


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
