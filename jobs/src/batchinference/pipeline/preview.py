"""Runs the steps of a job over its first rows in this process, without Ray and without writing.

Uses the reader and the steps that tasks use. Each step is loaded when its rows are ready, and gets
all of them as one batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.commit.commit_groups import warnings_of_group
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.warning_counts import with_paths
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.execution.step_runner import ErrorHandling, SegmentRunner
from batchinference.pipeline.input import JobInput
from batchinference.pipeline.input.file_input import FileInput, open_input
from batchinference.pipeline.job_checks import check_input
from batchinference.pipeline.output.error_records import error_records
from batchinference.pipeline.output.file_split import FileSplit
from batchinference.pipeline.row_batch import READ_STEP, RowBatch, merged
from batchinference.pipeline.rows_in_flight import IN_FLIGHT
from batchinference.pipeline.steps import check_step
from batchinference.pipeline.storage.arrow_files import read_table
from batchinference.plan import Plan, Stage
from batchinference.plan.column_checks import replaced_columns
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.read import Read
from batchinference.spec.secrets import secret_variables
from batchinference.spec.steps import Step
from batchinference.spec.warnings import WarningCount
from batchinference.spec.write import WriteColumns

MAX_QUERY_ROWS = 10_000
"""Maximum rows of an SQL query, because a preview reads all rows of it."""


@dataclass(frozen=True)
class Outcome:
    """The result of one step, or of reading: the duration and the numbers of rows."""

    name: str
    seconds: float
    rows: int
    """The number of rows that the step returned."""
    filtered: int
    failed: int
    first_failed: str
    """The first failed row with its error; empty if no row failed."""
    warnings: list[WarningCount]
    load_seconds: float = 0.0
    """The time to load the model or code, in seconds."""


@dataclass
class Preview:
    """A preview of a job over at most `rows` rows. `plan` assigns devices to the steps."""

    spec: BatchInferenceSpec
    plan: Plan
    rows: int
    remarks: list[str] = field(default_factory=list, init=False)
    """Remarks for the user about the input and its columns. Set by `read`."""
    batch: RowBatch = field(default_factory=RowBatch, init=False)
    """The rows after the last step that has run."""
    _paths: pa.ChunkedArray | None = field(default=None, init=False)
    """The paths of the input files, by file number."""

    def run(self) -> Iterator[Outcome]:
        """Read the rows and run the steps. Yield the outcome of each as soon as it has ended. Ends
        early if no row is left. Raises JobFailure, and errors of storage and libraries."""
        secret_variables(self.spec)  # messages hide the secrets from now on
        for step in self.spec.steps:
            check_step(step)
        yield self.read()
        for step in self.spec.steps:
            if len(self.batch.ids):
                yield self.run_step(step)

    def written_rows(self) -> pa.Table:
        """Return the rows after the last step, with the columns that the job would write. Raises
        JobFailure if such a column is missing."""
        write, table = self.spec.write, self.batch.table
        columns = write.columns if isinstance(write, WriteColumns) else None
        if not (columns and table.num_rows):
            return table
        return FileSplit(tuple(columns)).columns_to_write(table)

    def read(self) -> Outcome:
        """Read the first rows, and return the outcome."""
        began = time.perf_counter()
        failing = self.spec.errors.failing_warnings
        source = open_input(self.spec.read.limited(self.rows), failing=failing)
        check_input(self.spec, source, self._layout)
        check_query(self.spec.read, source)
        self.remarks = [
            *replaced_columns(self.spec, source.columns()),
            *(source.remarks if isinstance(source, FileInput) else []),
        ]
        content = pa.BufferReader(source.serialized())
        self._paths = read_table(content, columns=["path"]).column("path")
        batch = first_rows(source, self.rows)
        return self._outcome(READ_STEP, batch, time.perf_counter() - began)

    def run_step(self, step: Step) -> Outcome:
        """Load a step, run it over the current rows, and return the outcome."""
        began = time.perf_counter()
        if step.cache is not None:  # a preview writes nothing, not even to the cache
            step = step.model_copy(update={"cache": None, "dedupe": True})
        stage = replace(self._stages.get(step.name, Stage(step.name, ())), steps=(step,))
        errors = ErrorHandling(True, self._layout.input, failing=self.spec.errors.failing_warnings)
        runner = SegmentRunner([stage], errors)
        loaded = time.perf_counter()
        with IN_FLIGHT.batch(0):  # after a failure, no row is asked again
            batch = merged(runner(self.batch))
        outcome = self._outcome(step.name, batch, time.perf_counter() - loaded)
        return replace(outcome, load_seconds=loaded - began)

    @cached_property
    def _layout(self) -> Layout:
        return Layout.of(self.spec)

    @cached_property
    def _stages(self) -> dict[str, Stage]:
        """The stage of the plan for each step. Several steps may have the same stage."""
        return {step.name: stage for stage in self.plan.stages for step in stage.steps}

    def _outcome(self, name: str, batch: RowBatch, seconds: float) -> Outcome:
        """Return the outcome of the step that made this batch, and set `batch`."""
        filtered = len(batch.filtered) - len(self.batch.filtered)
        failed = batch.errors.filter(pc.equal(batch.errors.column("step"), name))
        self.batch = batch
        first = self._described(failed) if failed.num_rows else ""
        rows = len(batch.ids), filtered, failed.num_rows
        return Outcome(name, seconds, *rows, first, self._warnings(name))

    def _warnings(self, step: str) -> list[WarningCount]:
        """Return the warnings of a step about rows of the current batch."""
        of_step = [warning for warning in warnings_of_group(self.batch) if warning.step == step]
        paths = self._paths
        return with_paths(of_step, lambda file: "" if paths is None else paths[file].as_py())

    def _described(self, failed: pa.Table) -> str:
        (record,) = error_records(failed.slice(0, 1), self._paths).to_pylist()
        return f"row {record['row']} of {record['path']}: {record['error']}"


def check_query(read: Read, source: JobInput) -> None:
    """Raise BadInput if the input is an SQL query with more than MAX_QUERY_ROWS rows."""
    count = None if read.has_limit else source.count()
    if count is not None and count.rows > MAX_QUERY_ROWS:
        raise BadInput(
            f"read.query: a preview reads all rows of the query ({count.rows} rows). Preview a "
            f"copy of the job whose query returns at most {MAX_QUERY_ROWS} rows"
        )


def first_rows(source: JobInput, rows: int) -> RowBatch:
    """Return the first `rows` readable rows, and the failed rows of each batch that was not cut."""
    batches: list[RowBatch] = []
    missing = rows
    for batch in (batch for read in source.read_tasks(1) for batch in read()):
        first, _ = batch.split_at(missing)
        batches.append(first)
        missing -= len(first.ids)
        if missing == 0:
            break
    return merged(batches)
