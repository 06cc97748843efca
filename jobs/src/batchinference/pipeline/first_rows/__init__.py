"""Computes the first rows of a job before all other rows, for its gate and its cascades.

The first rows are a separate pass. After their commit, the gate decides whether the job goes on
(`gate`), and the thresholds of the cascades are learned (`cascade`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.commit.row_coverage import common_rows
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.execution.prepared_pass import PassEnd, PreparedPass
from batchinference.pipeline.first_rows.cascade import learn_threshold
from batchinference.pipeline.first_rows.gate import check_gate
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.input.planning import MIN_BLOCK_ROWS, MIN_BLOCKS, MIN_FILES, Sizing
from batchinference.pipeline.output.python_rows import Row
from batchinference.pipeline.output.writers import rows_of_file
from batchinference.pipeline.output.writers.kinds import writer_for
from batchinference.pipeline.row_batch import MissingRows
from batchinference.spec.gate import Gate
from batchinference.spec.job import BatchInferenceSpec


def limited_to_first_rows(spec: BatchInferenceSpec, run: PreparedPass) -> PreparedPass:
    """Return the run. If the gate or a cascade still needs first rows, the run is limited to those
    that are missing. Raises BadInput if it is unknown which rows are the first."""
    if not _needs_first_rows(spec, run.start):
        return run
    missing = common_rows(run.missing, _first_rows(spec, run, run.start.ends))
    rows = sum((after or 0) - first for ranges in missing.values() for first, after in ranges)
    blocks = max(1, min(MIN_BLOCKS, rows // MIN_BLOCK_ROWS))
    per_file = max(1, min(run.sizing.rows_per_file, rows // MIN_FILES))
    sizing, count = Sizing(blocks, blocks, per_file), RowCount(rows, estimated=False)
    return replace(run, missing=missing, sizing=sizing, count=count, is_sample=True)


def _needs_first_rows(spec: BatchInferenceSpec, start: Snapshot) -> bool:
    """Return whether the job has first rows that were not checked yet, or only by another gate."""
    has_new_gate = _has_new_gate(spec.gate, start)
    return bool(spec.first_rows_columns) and (not start.findings or has_new_gate)


def _has_new_gate(gate: Gate | None, start: Snapshot) -> bool:
    return gate is not None and gate.model_dump_json() != start.gate


def _first_rows(
    spec: BatchInferenceSpec, run: PreparedPass, ends: Mapping[int, int]
) -> MissingRows:
    """Return the rows that the gate and the cascades need. `ends` are the known ends of files."""
    rows = [step.cascade.rows for step in spec.steps if step.cascade]
    if spec.gate is not None and spec.gate.percent is not None:
        if run.count is None:
            raise BadInput("spec.gate.percent: the number of rows is unknown. Set rows instead")
        rows.append(math.ceil(run.count.rows * spec.gate.percent / 100))
    elif spec.gate is not None:
        rows.append(spec.gate.rows or 0)
    return run.input.first_rows(max(rows), ends)


def with_findings(spec: BatchInferenceSpec, run: PreparedPass, end: PassEnd) -> PassEnd:
    """Return the end of a pass. If the first rows are complete now, check them, and add findings
    and thresholds to the snapshot. Raises GateFailed like `check_gate`, and JobFailure like
    `learn_threshold`."""
    if not _needs_first_rows(spec, run.start):
        return end
    first = _first_rows(spec, run, end.snapshot.ends)
    if common_rows(end.missing, first):
        return end
    entries = [entry for entry in end.snapshot.entries if _has_rows_of(entry, first)]
    rows = list(_stored_rows(spec, run, entries))
    gate = spec.gate
    findings = [run.start.findings] if run.start.findings else []
    if gate is not None and _has_new_gate(gate, run.start):
        findings.append(check_gate(gate, rows))
    thresholds = dict(run.start.thresholds)
    for step in spec.steps:
        if step.cascade is not None and step.name not in thresholds:
            thresholds[step.name], text = learn_threshold(step.name, step.cascade, rows)
            findings.append(text)
    passed = gate.model_dump_json() if gate else ""
    checked = replace(end.snapshot, findings="; ".join(findings), thresholds=thresholds)
    return replace(end, snapshot=replace(checked, gate=passed))


def _has_rows_of(entry: ManifestEntry, first: MissingRows) -> bool:
    """Return whether a manifest entry has some of the first rows."""
    rows = [(file, row) for file, row, _ in [*entry.row_ranges, *entry.shares]]
    return any(file in first and row < (first[file][-1][1] or 0) for file, row in rows)


def _stored_rows(
    spec: BatchInferenceSpec, run: PreparedPass, entries: Iterable[ManifestEntry]
) -> Iterator[Row]:
    """Yield the rows in the data files of these entries, only with the columns that the gate and
    the cascades read. Raises BadOutput if a file is damaged."""
    write, columns = spec.write, set().union(*spec.first_rows_columns.values())
    writer = run.table.parquet if run.table else writer_for(write)
    for file in (file for entry in entries for file in entry.data):
        for row in rows_of_file(run.job_pass.layout.data / file.name, writer):
            yield {name: row.get(name) for name in columns}
