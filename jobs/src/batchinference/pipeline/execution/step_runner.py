"""Runs the steps of a segment over batches of rows, and isolates rows that fail.

A batch that raises an error about a row is halved until each failing row is alone."""

from __future__ import annotations

import itertools
import json
import os
import platform
import time
import traceback
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event, Lock

import numpy as np
import pyarrow as pa

from batchinference.credentials import NO_SECRETS, SecretVariables
from batchinference.pipeline.arrow import concat
from batchinference.pipeline.error_classification import (
    has_stopped_kernel,
    is_about_the_row,
    is_device_fault,
    is_out_of_memory,
    may_be_transient,
)
from batchinference.pipeline.errors import (
    DeviceFailed,
    EngineDied,
    JobFailure,
    TooManyErrors,
    describe,
    redact,
)
from batchinference.pipeline.execution.batch_size import BatchSize
from batchinference.pipeline.execution.crash_notes import noted_rows
from batchinference.pipeline.input.input_snapshot import paths_of
from batchinference.pipeline.model_turns import OCCUPANCY, TURNS
from batchinference.pipeline.output.error_records import values_as_json
from batchinference.pipeline.ray_compat import node_of_this_process
from batchinference.pipeline.row_batch import ERRORS, RowBatch, unpack_ids, without_rows
from batchinference.pipeline.row_warnings import RowWarning, collect_warnings, warning_table
from batchinference.pipeline.rows_in_flight import Unanswered
from batchinference.pipeline.runtimes.device import (
    Device,
    device_of,
    empty_caches,
    limit_this_thread,
)
from batchinference.pipeline.step_time import StepTime, preparation_of
from batchinference.pipeline.steps import load_step, with_condition
from batchinference.pipeline.steps.result_columns import ResultColumns
from batchinference.pipeline.steps.schema_inference import result_without_rows
from batchinference.pipeline.steps.tokenization import Preparation
from batchinference.pipeline.steps.transform import (
    RESULT_BYTES,
    Transform,
    TransformResult,
    all_failed,
    as_result,
    without_bad_rows,
)
from batchinference.pipeline.storage.location import Location
from batchinference.plan import Stage
from batchinference.spec.progress import TokenKind
from batchinference.spec.reserved import NODE_VARIABLE
from batchinference.spec.steps import Step

TRACEBACK_LINES = 12
STOP_SECONDS = 2.0
"""When a job stops, the remaining rows of a batch are left out if they would take more seconds."""


@dataclass(frozen=True)
class ErrorHandling:
    """Decides what the error of a row does: the row becomes a failed row, or the job fails.

    - `tolerant`: whether failed rows are allowed
    - `input`: the location of the input snapshot, with which messages name a row
    - `values`: whether error records store the values of rows, not only of the column `key`
    - `failing`: the names of warnings that make their rows failed rows
    - `max_rows`: the maximum number of failed rows of the job, if any
    - `secrets`: their values are masked in each process that handles errors
    - `waits`: the seconds before each retry of a batch after an error that may be transient
    - `input_digest`: the digest of the input snapshot"""

    tolerant: bool
    input: Location
    values: bool = False
    failing: Collection[str] = ()
    max_rows: int | None = None
    secrets: SecretVariables = NO_SECRETS
    key: str | None = None
    waits: tuple[float, ...] = (1.0, 4.0)
    input_digest: str = ""

    @property
    def paths(self) -> pa.ChunkedArray:
        """The addresses of the input files, by file number."""
        return paths_of(self.input, self.input_digest)

    def failed_row(self, step: str, row_id: int, error: Exception, row: pa.Table) -> pa.Table:
        """Return a table with the failed row. `row` is the input of the step. Raises JobFailure if
        failed rows are not allowed."""
        if not self.tolerant:
            (file,), (number,) = unpack_ids(np.array([row_id]))
            path = self.paths[int(file)].as_py()
            raise JobFailure(
                f"step '{step}' failed on row {number} of {path}: {describe(error)}"
            ) from error
        lines = traceback.format_exception(error)[-TRACEBACK_LINES:]
        record = row if self.values else row.select([n for n in row.column_names if n == self.key])
        values = values_as_json(record, self.key) if record.num_columns else None
        columns = [row_id], [step], [describe(error)], [redact("".join(lines))], [values]
        return pa.table(list(columns), schema=ERRORS)

    def has_too_many(self, failed: int) -> bool:
        """Return whether this number of failed rows in one batch exceeds the limit of the job."""
        return self.max_rows is not None and failed > self.max_rows

    def failed_rows(
        self, step: str, batch: RowBatch, errors: Mapping[int, Exception]
    ) -> list[tuple[int, pa.Table]]:
        """Return the batch index and the failed row of each row in `errors`."""
        return [
            (row, self.failed_row(step, int(batch.ids[row]), error, batch.table.slice(row, 1)))
            for row, error in sorted(errors.items())
        ]


class SegmentRunner:
    """Runs the steps of a segment. Each actor or worker process creates one runner."""

    def __init__(self, stages: Sequence[Stage], errors: ErrorHandling) -> None:
        """Load the models and user code of the steps. Raises ModelLoad or DeviceFailed."""
        self._steps = [runner for stage in stages for runner in _runners_of(stage, errors)]

    def __call__(self, batch: RowBatch, stopping: Event | None = None) -> Iterator[RowBatch]:
        """Yield the results of a batch, in several batches if a step makes large results. After
        `stopping` is set, slow steps return only the results of the first rows."""
        batches = iter([batch])
        for step in self._steps:
            batches = itertools.chain.from_iterable(map(partial(step, stopping=stopping), batches))
        yield from batches

    @contextmanager
    def without_learning(self) -> Iterator[None]:
        """Keep the batch sizes and column types of the steps unchanged while the block runs."""
        with ExitStack() as kept:
            for step in self._steps:
                kept.enter_context(step.without_learning())
            yield

    def for_other_thread(self) -> SegmentRunner:
        """Return a runner for the current thread, which shares the models and code of the steps."""
        limit_this_thread()
        other = copy(self)
        other._steps = [step.for_other_thread() for step in self._steps]
        return other

    def note_occupancy(self) -> None:
        """Make the notes of the first step also say how busy this process of a pool is."""
        self._steps[0].time.note_also(OCCUPANCY.take_seconds)

    def take_notes(self) -> tuple[tuple[str, str], ...]:
        """Return the measurements of all steps since the last call, as notes."""
        return tuple(note for step in self._steps for note in step.time.take_rest())


def _runners_of(stage: Stage, errors: ErrorHandling) -> Iterator[StepRunner]:
    """Yield the runners of the steps of a stage, on the device of the stage."""
    custom, kinds = dict(stage.custom), dict(stage.kinds)
    device = device_of(cpus=stage.cpus, gpus=stage.gpus, custom=custom, kinds=kinds)
    load = _prepared if stage.prepares else _loaded
    yield from (load(step, device, errors) for step in stage.steps)


def _loaded(step: Step, device: Device, errors: ErrorHandling) -> StepRunner:
    """Return the runner of a step, with its model or code. Raises ModelLoad and DeviceFailed."""
    began = time.perf_counter()
    try:
        transform = load_step(step, device)
    except Exception as error:
        if is_device_fault(error):
            raise _failure(step.name, error) from error
        raise
    runner = StepRunner(step, transform, errors)
    runner.time.add_load(time.perf_counter() - began)
    return runner


def _prepared(step: Step, device: Device, errors: ErrorHandling) -> StepRunner:
    """Return the runner of the preparation of a model step, measured separately from the model."""
    began = time.perf_counter()
    preparation = Preparation.load(step.name, step.model, device)
    transform = with_condition(step, preparation, adds={})
    runner = StepRunner(step, transform, errors, preparation_of(step.name))
    runner.time.add_load(time.perf_counter() - began)
    return runner


def _failure(step: str, error: Exception) -> JobFailure:
    """Return the failure of a step after an error that is not about a row."""
    if has_stopped_kernel(error):  # a new process computes these rows as suspects
        return EngineDied(f"step '{step}' must run in a new process: {describe(error)}")
    if is_device_fault(error):
        machine = os.environ.get(NODE_VARIABLE, "")
        message = f"step '{step}': a device of the node {machine or platform.node()} failed"
        return DeviceFailed(f"{message}: {describe(error)}", node_of_this_process(), machine)
    return JobFailure(f"step '{step}' cannot continue: {describe(error)}")


class StepRunner:
    """Runs one step over the rows of a batch."""

    _sharing = Lock()
    """A lock for the batch size, which all threads of the process share."""

    def __init__(
        self,
        step: Step,
        transform: Transform,
        errors: ErrorHandling,
        measured_as: str | None = None,
        result_bytes: int = RESULT_BYTES,
    ) -> None:
        self.name, self._result_bytes = step.name, result_bytes
        self._transform, self._skips_rows = transform, step.skips_rows
        self._take_own_notes = getattr(transform, "take_notes", list[str])
        self._no_rows = partial(result_without_rows, step, transform=transform)
        self._errors, self._batch = errors, BatchSize.of(step)
        self.time = StepTime(measured_as or step.name)
        # runtimes of models call `model_turns.computing` themselves
        self._computing = nullcontext if step.model else OCCUPANCY.computing
        self._waits = [*errors.waits]
        self._stopping: Event | None = None
        self._row_seconds = 0.0

    def __call__(self, batch: RowBatch, stopping: Event | None = None) -> Iterator[RowBatch]:
        """Yield the results of a batch, in batches of about `result_bytes` if they are large. All
        rows of an input row are in one batch. After `stopping` is set, remaining rows are left out
        if they would take more than STOP_SECONDS. If the step fails, the results before the failure
        are yielded first."""
        self._stopping = stopping
        rest: RowBatch | None = batch
        while rest is not None:
            if not len(rest.ids):
                known = rest.table.num_columns
                yield replace(rest, table=self._no_rows(rest.table)) if known else rest
                return
            results = self._results(rest)
            batch, rest = rest, None
            if results.rows < len(batch.ids):
                batch, rest = batch.split_with_outcomes(results.rows)
            with self._sharing:
                sizes = [(self.name, note) for note in self._batch.take_notes()]
            own = [(self.name, note) for note in [*self._take_own_notes(), *results.token_notes()]]
            notes = (*batch.notes, *sizes, *own, *self.time.take_notes())
            after = results.applied_to(batch, self.name)
            if not (len(after.ids) or after.table.num_columns):
                after = replace(after, table=self._no_rows(batch.table))
            yield replace(after, notes=notes)
            if self._errors.has_too_many(len(results.failed)):
                # the results that were yielded are committed, with the error records
                raise TooManyErrors(
                    f"more than errors.maxRows ({self._errors.max_rows}) rows failed in step "
                    f"'{self.name}'. One of them: {results.last_error}"
                )
            if results.failure is not None:
                raise results.failure
            if rest is not None and self._must_end(len(rest.ids)):
                return

    @contextmanager
    def without_learning(self) -> Iterator[None]:
        """Keep the batch size and the column types of the step unchanged while the block runs."""
        columns = getattr(self._transform, "result_columns", None)
        batch, self._batch = self._batch, replace(self._batch, search_limit=None, notes=[])
        try:
            with (
                columns.without_learning() if isinstance(columns, ResultColumns) else nullcontext()
            ):
                yield
        finally:
            batch.notes += self._batch.notes
            if self._batch.size < batch.size:  # memory ran out
                batch = self._batch
            self._batch = batch

    def for_other_thread(self) -> StepRunner:
        """Return a runner that shares the model or code and the batch size."""
        other = copy(self)
        other.time, other._waits = self.time.for_other_thread(), [*self._errors.waits]
        return other

    def _must_end(self, rows: int) -> bool:
        """Return whether the job stops and `rows` rows would take too long."""
        stops = self._stopping is not None and self._stopping.is_set()
        return stops and rows * self._row_seconds > STOP_SECONDS

    def _results(self, batch: RowBatch) -> StepResults:
        """Return the results of the batch, or of its first rows if results are large or the step
        fails later. Raises JobFailure if there are no results to return, or if the process must
        end."""
        results = StepResults()
        chosen = ALL_ROWS
        if self._skips_rows:
            chosen = ChosenRows(self._transform.rows_to_compute(batch.table))
        with self.time.measure(lambda: chosen.number(0, results.rows)), self._computing():
            while wanted := results.rows_wanted(batch.ids, self._batch.size, chosen):
                part = batch.table.slice(results.rows, wanted)
                noted = batch.ids[results.rows : results.rows + wanted]
                try:
                    with noted_rows(self.name, noted):
                        done = self._run(part, batch.ids, results, chosen)
                except EngineDied:
                    raise  # this process ends, and the note of the rows must remain
                except JobFailure as failure:
                    results = results.before(_complete_rows(batch.ids, results.rows))
                    if results.rows == len(results.unanswered):
                        raise
                    results.failure = failure
                    break
                if not done:
                    empty_caches()  # only now, because the error referenced tensors of the batch
                elif (
                    results.nbytes >= self._result_bytes
                    or self._errors.has_too_many(len(results.failed))
                    or self._must_end(len(batch.ids) - results.rows)
                ):
                    results.is_full = True
        return results

    def _run(
        self, part: pa.Table, ids: np.ndarray, results: StepResults, chosen: ChosenRows
    ) -> bool:
        """Add the results of a part of the batch. Return False if the part must be retried,
        possibly in smaller parts, and otherwise True."""
        start = results.rows
        began = time.perf_counter() - TURNS.waited_seconds
        try:
            isolated = self._isolated(part, results.rows, ids)
        except JobFailure:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                with self._sharing:
                    rows = chosen.number(start, start + part.num_rows)
                    self._batch.record_out_of_memory(rows, error)
                return False
            if may_be_transient(error) and self._waits:
                time.sleep(self._waits.pop(0))
                return False
            raise _failure(self.name, error) from error
        results.add(isolated)
        if isolated.failure is not None:
            raise isolated.failure
        seconds = time.perf_counter() - TURNS.waited_seconds - began
        self._row_seconds = seconds / max(1, isolated.rows)
        if computed := chosen.number(start, results.rows):
            with self._sharing:
                self._batch.record_success(computed, seconds)
        self._waits = [*self._errors.waits]
        return True

    def _isolated(self, rows: pa.Table, offset: int, ids: np.ndarray) -> StepResults:
        """Return the results of rows. `offset` is the index of the first row in the batch. Later
        rows have no results if the results are large, too many rows fail, or an error follows. A
        row that ends the job is unanswered, and the `failure` of the results is set."""
        results = StepResults()
        for part in _before_error(bisect_failures(self._transform, rows, self._errors.failing)):
            start = offset + part.start
            results.rows = part.start + part.rows
            results.warnings += [w._replace(row=start + w.row) for w in part.warnings]
            results.add_table(part.result.table, start + part.result.parents)
            for index, error in sorted(part.result.failed.items()):
                number, row = start + index, rows.slice(part.start + index, 1)
                try:
                    failed = self._failed_row(int(ids[number]), error, row)
                except JobFailure as failure:
                    results.failure = results.failure or failure
                    failed = None
                if failed is None:
                    results.unanswered.append(number)
                    continue
                results.failed.append((number, failed))
                if self._errors.has_too_many(len(results.failed)):
                    return results.before(number + 1, offset)
            if results.nbytes >= self._result_bytes or results.failure is not None:
                break
        return results

    def _failed_row(self, row_id: int, error: Exception, row: pa.Table) -> pa.Table | None:
        """Return a table with the failed row, or None if the row has no outcome. Raises JobFailure
        if the error ends the job."""
        if not isinstance(error, Unanswered):
            return self._errors.failed_row(self.name, row_id, error, row)
        if error.cause is None:
            return None
        if isinstance(error.cause, JobFailure):
            raise error.cause
        raise _failure(self.name, error.cause) from error.cause


class ChosenRows:
    """The rows of a batch that a step computes. `mask` selects them; None selects all."""

    def __init__(self, mask: np.ndarray | None = None) -> None:
        self._before = None if mask is None else np.concatenate([[0], np.cumsum(mask)])

    def number(self, start: int, stop: int) -> int:
        """Return the number of computed rows from row `start` to before row `stop`."""
        if self._before is None:
            return stop - start
        return int(self._before[stop] - self._before[start])

    def stop(self, start: int, computed: int) -> int:
        """Return the largest end of a range from `start` with at most `computed` computed rows."""
        if self._before is None:
            return start + computed
        return int(np.searchsorted(self._before, self._before[start] + computed, side="right")) - 1


ALL_ROWS = ChosenRows()


@dataclass
class StepResults:
    """The results of a step for the first rows of a batch. Indexes refer to rows of the batch."""

    tables: list[pa.Table] = field(default_factory=list)
    parents: list[np.ndarray] = field(default_factory=list)
    """For each table, the index of the batch row from which each table row was made."""
    failed: list[tuple[int, pa.Table]] = field(default_factory=list)
    """The index of each failed row, and the failed row."""
    unanswered: list[int] = field(default_factory=list)
    """The indexes of the rows that have no outcome, because the process stops or the job ends."""
    warnings: list[RowWarning] = field(default_factory=list)
    rows: int = 0
    """The number of batch rows that have results."""
    nbytes: int = 0
    is_full: bool = False
    """Whether the step computes only the remaining rows of input rows that it has begun."""
    failure: JobFailure | None = None
    """Why the following rows have no results."""

    def rows_wanted(self, ids: np.ndarray, limit: int, chosen: ChosenRows = ALL_ROWS) -> int:
        """Return how many of the next batch rows the step gets: at most `limit` rows of `chosen`,
        and the rows between them. `ids` are the input row IDs of the batch. If the results are
        full, the rows end with the last row of an input row that has results."""
        rest = ids[self.rows :]
        limit = chosen.stop(self.rows, limit) - self.rows
        if not self.is_full:
            return min(len(rest), limit)
        begun = np.flatnonzero(np.isin(rest, ids[: self.rows]))
        return min(int(begun[-1]) + 1 if len(begun) else 0, limit)

    @property
    def last_error(self) -> str:
        """The message of the last failed row."""
        return str(self.failed[-1][1].column("error")[0])

    def add_table(self, table: pa.Table, parents: np.ndarray) -> None:
        """Add a table. `parents` has the batch row index from which each table row was made."""
        self.tables.append(table)
        self.parents.append(parents)
        self.nbytes += int(table.nbytes)

    def add(self, other: StepResults) -> None:
        """Add the results of the next rows."""
        self.tables += other.tables
        self.parents += other.parents
        self.failed += other.failed
        self.unanswered += other.unanswered
        self.warnings += other.warnings
        self.rows += other.rows
        self.nbytes += other.nbytes

    def before(self, row: int, offset: int = 0) -> StepResults:
        """Return the results before the batch row `row`. `offset` is the first row with results."""
        ends = [int(np.searchsorted(parents, row)) for parents in self.parents]
        earlier = StepResults(rows=row - offset)
        for table, parents, end in zip(self.tables, self.parents, ends, strict=True):
            earlier.add_table(table.slice(0, end), parents[:end])
        earlier.failed = [failed for failed in self.failed if failed[0] < row]
        earlier.unanswered = [unanswered for unanswered in self.unanswered if unanswered < row]
        earlier.warnings = [warning for warning in self.warnings if warning.row < row]
        return earlier

    def token_notes(self) -> list[str]:
        """Return a note with the numbers of tokens (JSON), if models used any."""
        tokens = Counter[str]()
        for warning in self.warnings:
            if isinstance(warning.name, TokenKind):
                tokens[warning.name.value] += warning.amount
        return [json.dumps(+tokens)] if +tokens else []

    def applied_to(self, batch: RowBatch, step: str) -> RowBatch:
        """Return the batch after the step `step`, without the input rows of unanswered rows. Raises
        JobFailure if the values of a column have no common type."""
        tables = [table for table in self.tables if table.num_rows]
        try:
            table = concat(tables) if tables else without_rows(self.tables)
        except JobFailure as failure:
            raise JobFailure(f"step '{step}': {failure.message}") from failure
        parents = np.concatenate(self.parents) if self.parents else np.empty(0, dtype=np.int64)
        if self.warnings:
            batch = batch.with_warnings(warning_table(step, batch.ids, self.warnings))
        after = batch.derived(table, parents, self.failed)
        return after.without_inputs(batch.ids[self.unanswered]) if self.unanswered else after


def _complete_rows(ids: np.ndarray, rows: int) -> int:
    """Return the largest end, up to `rows`, that divides no input row. `ids` are the input row IDs
    of the batch."""
    _, inputs = np.unique(ids, return_inverse=True)
    last = np.zeros(len(ids), dtype=np.int64)
    np.maximum.at(last, inputs, np.arange(len(ids)))
    reach = np.maximum.accumulate(last[inputs])[:rows]
    complete = np.flatnonzero(reach <= np.arange(rows))
    return int(complete[-1]) + 1 if len(complete) else 0


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a batch and their result. Row indexes in the result and the warnings are
    relative to `start`."""

    start: int
    rows: int
    result: TransformResult
    warnings: Sequence[RowWarning] = ()


def _before_error(parts: Iterator[Part]) -> Iterator[Part]:
    """Yield the parts before an error, and raise the error only if there are none. An error that
    persists is raised again when the next rows are computed."""
    first = next(parts)
    yield first
    with suppress(Exception):
        yield from parts


def bisect_failures(
    apply: Transform, batch: pa.Table, failing: Collection[str] = (), start: int = 0
) -> Iterator[Part]:
    """Yield the results of `apply` over a batch, in order. Each failed row is a separate part. If a
    result covers only the first rows, the next part begins after these rows. `failing` are the
    names of warnings that make their rows failed rows. Makes up to 2 x log2(rows) additional calls
    for each failed row. Raises errors that are not about a row (see `is_about_the_row`)."""
    stop = start + batch.num_rows
    while True:
        result, warnings = _try(apply, batch, failing)
        if result is None:
            break
        rows = batch.num_rows if result.rows is None else result.rows
        yield Part(start, rows, result, [warning for warning in warnings if warning.row < rows])
        start, batch = start + rows, batch.slice(rows)
        if start == stop:
            return
    half = batch.num_rows // 2
    parts = itertools.chain(
        bisect_failures(apply, batch.slice(0, half), failing, start),
        bisect_failures(apply, batch.slice(half), failing, start + half),
    )
    for part in parts:
        yield replace(part, warnings=[*warnings, *part.warnings])
        warnings = []


def _try(
    apply: Transform, batch: pa.Table, failing: Collection[str]
) -> tuple[TransformResult | None, list[RowWarning]]:
    """Return the result of a step, and its warnings about rows that have not failed. The result is
    None if the call failed for several rows. The first row gets the tokens of a failed call."""
    # do not halve in the handler: this error would be the context of errors of single rows, and its
    # traceback references tensors of the batch, but the halves need their memory
    try:
        with collect_warnings() as warnings:
            result = apply(batch)
        result = as_result(without_bad_rows(result, warnings, failing))
    except Exception as error:
        if not is_about_the_row(error):
            raise
        token_counts = [w._replace(row=0) for w in warnings if isinstance(w.name, TokenKind)]
        return all_failed(batch.num_rows, error) if batch.num_rows <= 1 else None, token_counts
    # failed rows have used tokens, too
    valid = (w for w in warnings if w.row not in result.failed or isinstance(w.name, TokenKind))
    return result, list(valid)
