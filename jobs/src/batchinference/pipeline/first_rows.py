"""Computes the first rows of a job alone, for its gate and its cascades."""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.commit.row_coverage import common_rows
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.errors import BadInput, GateFailed, JobFailure
from batchinference.pipeline.execution.attempt_run import AttemptEnd, AttemptRun
from batchinference.pipeline.expression import ColumnExpression, UnsuitableTypes
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.input.planning import MIN_BLOCK_ROWS, MIN_BLOCKS, MIN_FILES, Sizing
from batchinference.pipeline.output.python_rows import Row
from batchinference.pipeline.output.writers import rows_of_file, writer_for
from batchinference.pipeline.row_batch import MissingRows
from batchinference.plan import Plan
from batchinference.spec.cascade import Cascade
from batchinference.spec.expression import columns_read_by
from batchinference.spec.gate import Gate, parse_expectation
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.steps import Step
from batchinference.text import counted

ROWS_AT_ONCE = 4096
_MAX = sys.float_info.max
CONFIDENCE, _QUANTILE = 95, 1.645
"""The confidence of lower bounds in percent, and the quantile of the normal distribution."""


def run_of_first(spec: BatchInferenceSpec, run: AttemptRun) -> AttemptRun:
    """Return the run of the missing rows that must be computed first. It is the run itself if there
    are none. Raises BadInput if these rows are unknown."""
    if not _checks_first_rows(spec, run.start):
        return run
    missing = common_rows(run.missing, _first(spec, run, run.start.ends))
    rows = sum((after or 0) - first for ranges in missing.values() for first, after in ranges)
    blocks = max(1, min(MIN_BLOCKS, rows // MIN_BLOCK_ROWS))
    per_file = max(1, min(run.sizing.rows_per_file, rows // MIN_FILES))
    sizing, count = Sizing(blocks, blocks, per_file), RowCount(rows, estimated=False)
    return replace(run, missing=missing, sizing=sizing, count=count, is_sample=True)


def _checks_first_rows(spec: BatchInferenceSpec, start: Snapshot) -> bool:
    """Return whether the first rows were not checked yet, or for another gate."""
    return bool(spec.first_rows_columns) and (not start.findings or _changed(spec.gate, start))


def _changed(gate: Gate | None, start: Snapshot) -> bool:
    return gate is not None and gate.model_dump_json() != start.gate


def _first(spec: BatchInferenceSpec, run: AttemptRun, ends: Mapping[int, int]) -> MissingRows:
    """Return the rows that must be computed first, as far as they are known."""
    rows = [step.cascade.rows for step in spec.steps if step.cascade]
    if spec.gate is not None and spec.gate.percent is not None:
        if run.count is None:
            raise BadInput("spec.gate.percent: the number of rows is unknown. Set rows instead")
        rows.append(math.ceil(run.count.rows * spec.gate.percent / 100))
    elif spec.gate is not None:
        rows.append(spec.gate.rows or 0)
    return run.input.first_rows(max(rows), ends)


def with_findings(spec: BatchInferenceSpec, run: AttemptRun, end: AttemptEnd) -> AttemptEnd:
    """Return the end of an attempt. If the first rows are complete now, its snapshot has what was
    found in them. Raises GateFailed if they are not as the gate expects."""
    if not _checks_first_rows(spec, run.start):
        return end
    first = _first(spec, run, end.snapshot.ends)
    if common_rows(end.missing, first):
        return end
    entries = [entry for entry in end.snapshot.entries if _holds_any(entry, first)]
    rows = list(_rows_of(spec, run, entries))
    gate = spec.gate
    findings = [run.start.findings] if run.start.findings else []
    findings += [described(gate, rows)] if gate is not None and _changed(gate, run.start) else []
    thresholds = dict(run.start.thresholds)
    for step in spec.steps:
        if step.cascade is not None and step.name not in thresholds:
            thresholds[step.name], text = learned(step.name, step.cascade, rows)
            findings.append(text)
    passed = gate.model_dump_json() if gate else ""
    first_rows = replace(end.snapshot, findings="; ".join(findings), thresholds=thresholds)
    return replace(end, snapshot=replace(first_rows, gate=passed))


def with_thresholds(plan: Plan, thresholds: Mapping[str, float | None]) -> Plan:
    """Return a plan whose cascades skip the rows with a score of at least these thresholds."""

    def changed(step: Step) -> Step:
        threshold = thresholds.get(step.name)
        if step.cascade is None or threshold is None:
            return step
        return step.model_copy(update={"when": step.cascade.condition(threshold), "cascade": None})

    stages = (replace(stage, steps=tuple(map(changed, stage.steps))) for stage in plan.stages)
    return replace(plan, stages=tuple(stages))


def _holds_any(entry: ManifestEntry, first: MissingRows) -> bool:
    held = [(file, row) for file, row, _ in [*entry.row_ranges, *entry.shares]]
    return any(file in first and row < (first[file][-1][1] or 0) for file, row in held)


def _rows_of(
    spec: BatchInferenceSpec, run: AttemptRun, entries: Iterable[ManifestEntry]
) -> Iterator[Row]:
    """Yield the rows of the output that these entries name, with the columns that are needed.
    Raises BadOutput."""
    write, columns = spec.write, set().union(*spec.first_rows_columns.values())
    writer = run.table.parquet if run.table else writer_for(write)
    for file in (file for entry in entries for file in entry.data):
        for row in rows_of_file(run.attempt.layout.data / file.name, writer):
            yield {name: row.get(name) for name in columns}


def described(gate: Gate, rows: Sequence[Row]) -> str:
    """Return what was measured in rows of the output, as text. Raises GateFailed if they are not as
    the gate expects."""
    expectation = parse_expectation(gate.expect)
    try:
        values = _values({text: m.expression for text, m in expectation.measures.items()}, rows)
        measured = {
            text: _AGGREGATES[measure.function](values.column(text))
            for text, measure in expectation.measures.items()
        }
        (holds,) = _values({"": expectation.condition}, [measured]).column("").to_pylist()
    except (UnsuitableTypes, pa.ArrowException, TypeError) as error:
        raise GateFailed(f"spec.gate.expect: {gate.expect} cannot be computed: {error}") from None
    found = ", ".join(f"{text} is {_shown(value)}" for text, value in measured.items())
    found += f" in {counted(len(rows), 'row', ',')}"
    if holds is not True:
        raise GateFailed(
            f"spec.gate expects {gate.expect}, but {found}. No further rows were computed. Correct "
            "the steps and start over with --restart (on a cluster, write.mode: overwrite); or "
            "change gate.expect and run the job again: it resumes with these rows"
        )
    return f"gate: {found}"


def learned(step: str, cascade: Cascade, rows: Sequence[Row]) -> tuple[float | None, str]:
    """Return the lowest score from which on an earlier result is good enough, and its measured
    quality as text. The score is None if there is none. Raises JobFailure if the expressions do not
    suit the rows.

    The score is learned from one half of the rows, and the other half is held out."""
    try:
        values = _values({"score": cascade.score, "agree": cascade.agree}, rows)
        scores = values.column("score").cast(pa.float64()).to_pylist()
    except (UnsuitableTypes, pa.ArrowException) as error:
        raise JobFailure(f"step '{step}': the cascade cannot be computed: {error}") from None
    pairs = zip(scores, values.column("agree").to_pylist(), strict=True)
    found = [(score, agree is True) for score, agree in pairs if score is not None]
    # not NaN, and no infinity, which a condition cannot name
    known = sorted((min(score, _MAX), agree) for score, agree in found if score > -math.inf)
    random.Random(0).shuffle(known)  # noqa: S311 - the same halves for the same rows
    threshold = lowest_score(known[::2], cascade.precision)
    if threshold is None:
        text = f"no score has a precision of {cascade.precision:g}, so the step runs for all rows"
        return None, f"cascade '{step}': {text}"
    used, held = (
        [agree for s, agree in half if s >= threshold] for half in (known[::2], known[1::2])
    )
    measured = f"{sum(held) / len(held):.1%} in {len(held)}" if held else "unknown in 0"
    return threshold, (
        f"cascade '{step}': {cascade.score} >= {threshold:.6g} is enough. The precision is at "
        f"least {lower_bound(sum(used), len(used)):.1%} with a confidence of {CONFIDENCE} %, and "
        f"{measured} rows that were held out. About {2 * len(held) / len(rows):.0%} of the rows "
        "are skipped"
    )


def lowest_score(known: Iterable[tuple[float, bool]], precision: float) -> float | None:
    """Return the lowest score for which the rows with at least this score agree often enough, by
    the lower bound of the fraction; None if there is none."""
    number = agreed = 0
    lowest = None
    for score, rows in itertools.groupby(sorted(known, reverse=True), lambda pair: pair[0]):
        results = [agree for _, agree in rows]
        number, agreed = number + len(results), agreed + sum(results)
        if lower_bound(agreed, number) >= precision:
            lowest = score
    return lowest


def lower_bound(successes: int, number: int) -> float:
    """Return the lower bound of a fraction: that of the one-sided interval of Wilson."""
    if not number:
        return 0.0
    share, z2 = successes / number, _QUANTILE**2 / number
    spread = _QUANTILE * math.sqrt((share * (1 - share) + z2 / 4) / number)
    return max(0.0, (share + z2 / 2 - spread) / (1 + z2))


def _values(expressions: Mapping[str, str], rows: Iterable[Row]) -> pa.Table:
    """Return the values of expressions, by name. Raises UnsuitableTypes and errors of Arrow."""
    names = sorted(set().union(*map(columns_read_by, expressions.values())))
    computed = {name: ColumnExpression(text, text) for name, text in expressions.items()}
    found = [pa.table(dict.fromkeys(expressions, pa.nulls(0)))]
    remaining = iter(rows)
    while part := list(itertools.islice(remaining, ROWS_AT_ONCE)):
        table = pa.table({name: pa.array([row.get(name) for row in part]) for name in names})
        found.append(pa.table({name: values(table) for name, values in computed.items()}))
    return pa.concat_tables(found, promote_options="permissive")


def _count(values: pa.ChunkedArray) -> int:
    if not (pa.types.is_boolean(values.type) or pa.types.is_null(values.type)):
        raise TypeError(f"count and fraction take a condition, and this is {values.type}")
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
