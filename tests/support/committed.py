"""Outputs as jobs without steps leave them, made by the product's own code, but without Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from batchinference.pipeline import rows
from batchinference.pipeline.additions import targets_of
from batchinference.pipeline.blocks import concat
from batchinference.pipeline.layout import Layout
from batchinference.pipeline.prepare import Prepared, prepare
from batchinference.pipeline.sink import Commit
from batchinference.pipeline.snapshot import Snapshot
from batchinference.pipeline.tables import table_for
from batchinference.pipeline.writers import writer_for
from batchinference.pipeline.writers.cut import Cut
from batchinference.spec import parse
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.report import JobState, Report
from batchinference.spec.write import WriteTable
from support.documents import Document

NOW = "2026-01-01T00:00:00Z"
Fates = Callable[[np.ndarray], np.ndarray]
"""From the numbers of rows in their files to the states of these (see `rows`)."""


def all_good(numbers: np.ndarray) -> np.ndarray:
    return np.full(len(numbers), rows.GOOD)


def every_tenth(numbers: np.ndarray) -> np.ndarray:
    """Of ten rows, the fourth is bad and the eighth left out."""
    return np.select([numbers % 10 == 3, numbers % 10 == 7], [rows.FAILED, rows.SKIPPED], rows.GOOD)


def commit(
    job: Document, fates: Fates = all_good, *, tasks: int = 3, complete: bool = True
) -> Layout:
    """Write the output of a job in so many commits; all but one of them if it is not to be
    complete."""
    spec = parse(job).spec
    prepared = prepare(spec, next(targets_of(spec)))
    assert isinstance(prepared, Prepared)
    tables = list(_tables(prepared, fates, tasks))
    _put(spec, prepared, tables if complete else tables[:-1])
    if complete:
        end = prepared.end()
        assert prepared.missing(end) == {}
        prepared.attempt.remove_all_but(end.pieces)
        if isinstance(spec.write, WriteTable):
            prepared.attempt.commit(spec.write, end, report_of(spec, end))
        prepared.attempt.complete(end, report_of(spec, end))
    return prepared.attempt.layout


def _tables(prepared: Prepared, fates: Fates, tasks: int) -> Iterator[pa.Table]:
    for read in prepared.input.read_tasks(tasks, prepared.gaps):
        yield concat([done for table in read() for done in _done(table, fates)])


def _done(table: pa.Table, fates: Fates) -> Iterator[pa.Table]:
    """What a table becomes when its rows have these fates."""
    good, rest = rows.split(table)
    ids = rows.ids_of(good)
    states = fates(rows.unpack(ids)[1])
    yield good.filter(pa.array(states == rows.GOOD))
    if (states == rows.SKIPPED).any():
        yield rows.skipped_rows(ids[states == rows.SKIPPED])
    for row in ids[states == rows.FAILED].tolist():
        yield rows.failed_row(row, "own", ValueError("no"))
    if rest is not None:
        yield rest


def _put(spec: BatchInferenceSpec, prepared: Prepared, tables: list[pa.Table]) -> None:
    writer = table_for(spec.write) if isinstance(spec.write, WriteTable) else writer_for(spec.write)
    put = Commit(prepared.attempt, writer, Cut.of(spec.write))
    for task, table in enumerate(tables):
        good = rows.split(table)[0]
        if task == 0 and isinstance(spec.write, WriteTable):
            writer.begin(good.select(rows.data_columns(good)).schema)
        put.put(table, task)


def report_of(spec: BatchInferenceSpec, end: Snapshot) -> Report:
    counts = {name: getattr(end.counts, name) for name in ("read", "written", "failed", "skipped")}
    return Report.model_validate(
        {"name": "job", "state": JobState.SUCCEEDED, "output": spec.write.path, "counts": counts,
         "startedAt": NOW, "updatedAt": NOW, "version": "0"}
    )  # fmt: skip
