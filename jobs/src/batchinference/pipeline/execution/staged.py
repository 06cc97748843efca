"""Runs the operators of a plan with Ray Data: read tasks, stages and write tasks."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
import ray.data
from ray.data import ActorPoolStrategy, DataContext, Dataset
from ray.data.block import Block, BlockAccessor, BlockMetadata
from ray.data.datasource import Datasink, Datasource, ReadTask

from batchinference.credentials import NO_SECRETS, SecretVariables
from batchinference.pipeline.arrow import concat
from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.execution.block_codec import OWN_COLUMNS, decode, encode
from batchinference.pipeline.execution.concurrent_batches import (
    concurrency_of_actors,
    concurrent_or_single,
)
from batchinference.pipeline.execution.control import ControlCallback, ExecutionControl
from batchinference.pipeline.execution.placement import placement_arguments
from batchinference.pipeline.execution.resources import (
    ACTOR_RESTARTS,
    TASK_RETRIES,
    all_cpus,
    cpus_of,
    memory_of,
    pool_size,
    read_retries,
    selector,
    write_task_arguments,
)
from batchinference.pipeline.execution.row_files import committer_for
from batchinference.pipeline.execution.step_runner import ErrorHandling, StageRunner
from batchinference.pipeline.execution.task_notes import PeakMemory, peak_memory, retry_notes
from batchinference.pipeline.execution.text_windows import WindowLimits, computed_longest_first
from batchinference.pipeline.input import ReadRows
from batchinference.pipeline.output.file_layout import FileLayout
from batchinference.pipeline.output.tables import Table, table_for
from batchinference.pipeline.output.writers import writer_for
from batchinference.pipeline.row_batch import READ_STEP, WRITE_STEP, RowBatch, resized
from batchinference.pipeline.step_time import StepTime
from batchinference.plan import Plan, Stage
from batchinference.plan.groups import CPU_GROUP
from batchinference.plan.stages import TASK_CPUS
from batchinference.plan.writing import writers
from batchinference.spec.write import Write, WriteTable

_UNFUSED: dict[str, Any] = {"max_calls": 0}
"""Ray's default for tasks, passed explicitly. Ray Data fuses only operators with equal arguments,
and actors and write tasks do not have this one. So read tasks and task stages are fused with each
other, but never into an actor pool or a write task, which would run them sequentially."""
READ_ROWS, READ_BYTES = 1 << 20, 16 << 20
"""Size of the encoded blocks, which Ray Data merges into larger blocks."""


@dataclass(frozen=True)
class StagedExecution:
    """The operators of one attempt. `blocks` is the number of blocks to cut the input into."""

    plan: Plan
    tasks: list[ReadRows]
    blocks: int
    repeatable: bool
    errors: ErrorHandling
    sink: CommitSink
    control: ExecutionControl
    windows: WindowLimits | None = None
    """The limits of the windows in which pools compute texts. None if the number of input rows is
    unknown, in which case there are no windows."""
    ordered: bool = False
    """Whether blocks stay in the order of the input, so that files hold consecutive rows."""

    def run(self) -> None:
        """Run the operators until all rows are committed."""
        ControlCallback.newest = self.control
        # for tasks without their own selector, such as those that split blocks
        options = DataContext.get_current().execution_options
        options.label_selector = selector(self.plan, CPU_GROUP)
        options.preserve_order = self.ordered
        dataset = self._read()
        for stage in self.plan.stages:
            dataset = self._add_stage(dataset, stage)
        arguments, at_once = write_task_arguments(self.plan), writers(all_cpus(self.plan))
        dataset.write_datasink(self.sink, ray_remote_args=arguments, concurrency=at_once)

    def _read(self) -> Dataset:
        dataset: Dataset = ray.data.read_datasource(
            RowSource(self.tasks, self.sink.run_id, self.errors.secrets),
            override_num_blocks=self.blocks,
            num_cpus=TASK_CPUS,
            label_selector=selector(self.plan, CPU_GROUP),
            ray_remote_args={"max_retries": read_retries(repeatable=self.repeatable)},
            **_UNFUSED,
        )
        return dataset

    def _add_stage(self, dataset: Dataset, stage: Stage) -> Dataset:
        plan, errors = self.plan, self.errors
        group = plan.group_of(stage) if plan.groups else ""
        common: dict[str, Any] = {
            "batch_format": "pyarrow",
            "num_cpus": cpus_of(stage, plan),
            "udf_modifying_row_count": False,
            "label_selector": selector(plan, group),
        }
        if stage.rows_per_block:
            return dataset.repartition(target_num_rows_per_block=stage.rows_per_block)
        if stage.replicas is None:
            task = _task(stage, errors)
            retries = {"max_retries": TASK_RETRIES, **_UNFUSED}
            return dataset.map_batches(task, batch_size=None, **common, **retries)
        least, most = pool_size(stage, plan)
        arguments = {
            **common,
            "num_gpus": stage.gpus or None,
            "resources": dict(stage.custom) or None,
            "accelerator_type": stage.accelerator,
            "memory": memory_of(stage, plan),
            "max_task_retries": TASK_RETRIES,
            "max_restarts": ACTOR_RESTARTS,
            **placement_arguments(stage, plan, dataset),
        }
        return dataset.map_batches(
            _actor(stage, errors),
            batch_size=self._rows_at_once(stage, most),
            compute=ActorPoolStrategy(
                min_size=least, max_size=most, **concurrency_of_actors(stage)
            ),
            **arguments,
        )

    def _rows_at_once(self, stage: Stage, replicas: int) -> int | None:
        """Return the number of rows that an actor gets at once: a batch, a window of texts, or a
        block for batches that are computed at the same time."""
        if stage.concurrent_batches > 1:
            return None
        if not (self.windows and stage.texts and stage.batch_size):
            return stage.batch_size
        return self.windows.window_rows(stage.batch_size, replicas)


class RowSource(Datasource):
    """A datasource that yields the rows of prepared read tasks as blocks."""

    def __init__(
        self, tasks: list[ReadRows], run_id: str, secrets: SecretVariables = NO_SECRETS
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tasks = [BlockReader(task, run_id, secrets) for task in tasks]

    def get_name(self) -> str:
        return "Rows"

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: DataContext | None = None,
    ) -> list[ReadTask]:
        metadata = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [ReadTask(task, metadata) for task in self._tasks]


@dataclass(frozen=True)
class BlockReader:
    """Reads rows as blocks. `run_id` identifies the attempt in a process that runs several."""

    read: ReadRows
    run_id: str
    secrets: SecretVariables = NO_SECRETS

    def __call__(self) -> Iterator[pa.Table]:
        read_time = StepTime(READ_STEP)
        read = read_time.of(self.read(), lambda batch: len(batch.source))
        for batch in resized(read, lambda: READ_ROWS, READ_BYTES):
            yield encode(batch)
        notes = (*peak_memory(self.run_id).notes(READ_STEP), *retry_notes(READ_STEP))
        if notes := (*notes, *read_time.take_rest()):
            yield encode(RowBatch(notes=notes))


class CommitSink(Datasink[None]):
    """The datasink of a job. `rows_per_file` is the minimum number of rows of a write task. `table`
    is the table that the job writes, if any, and `columns` are its columns; None for all."""

    def __init__(
        self,
        committer: Committer,
        rows_per_file: int,
        table: Table | None = None,
        columns: tuple[str, ...] | None = None,
    ) -> None:
        self._committer = committer
        self._rows_per_file = rows_per_file
        self._table, self._columns = table, columns

    @property
    def run_id(self) -> str:
        return self._committer.attempt.lease.run

    def get_name(self) -> str:
        return "Commit"

    @property
    def min_rows_per_write(self) -> int:
        return self._rows_per_file

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Prepare the table, if any, before the sink is sent to the write tasks. Ray calls this on
        the driver with the schema of the first rows that are ready. Raises JobFailure if these rows
        cannot be written because of their columns."""
        known = schema if isinstance(schema, pa.Schema) else pa.schema([])
        names = [name for name in known.names if name not in OWN_COLUMNS]
        self._committer.files.check(names)
        if self._table is None:
            return
        if self._columns:
            names = [name for name in self._columns if name in names]
        self._table.begin(pa.schema([known.field(name) for name in names]))

    def write(self, blocks: Iterable[Block], ctx: object) -> None:
        tables = [BlockAccessor.for_block(block).to_arrow() for block in blocks]
        tables = [table for table in tables if table.num_rows]
        if tables:
            self._committer.attempt.check_lease()
            batch = decode(concat(tables))
            write_notes = (*peak_memory(self.run_id).notes(WRITE_STEP), *retry_notes(WRITE_STEP))
            notes = (*batch.notes, *write_notes)
            task: int = ctx.task_idx  # type: ignore[attr-defined]
            self._committer.put(replace(batch, notes=notes), task)


def sink_for(
    write: Write,
    attempt: Attempt,
    rows_per_file: int,
    errors: ErrorHandling,
    first_file: int = 0,
) -> CommitSink:
    """Return the datasink of an output.

    `rows_per_file` is the minimum number of rows of a write task, unless files must have more.
    `first_file` is the number of the first input file."""
    layout = FileLayout.of(write)
    rows = max(rows_per_file, layout.rows_per_file or 0)
    if isinstance(write, WriteTable):
        table = table_for(write)  # write tasks need the table that `on_write_start` has prepared
        return CommitSink(committer_for(write, attempt, table, errors), rows, table, layout.columns)
    committer = committer_for(write, attempt, writer_for(write), errors, first_file)
    return CommitSink(committer, rows)


def _actor(stage: Stage, errors: ErrorHandling) -> type:
    """Return a class for an actor pool.

    The class contains its arguments. Constructor arguments are in Ray's object store and can be
    lost, and then Ray cannot restart the actor."""

    class StageActor:
        def __init__(self) -> None:
            self._failure: JobFailure | None = None
            try:
                self._stage = concurrent_or_single(stage, lambda: BlockStage(stage, errors))
            except JobFailure as failure:
                # raised at the first batch: Ray drops the cause of an error in a constructor
                self._failure = failure

        def __call__(self, block: pa.Table) -> Iterator[pa.Table]:
            if self._failure is not None:
                raise self._failure
            return self._stage(block)

    StageActor.__name__ = StageActor.__qualname__ = stage.name
    return StageActor


def _task(stage: Stage, errors: ErrorHandling) -> Callable[[pa.Table], Iterator[pa.Table]]:
    pickled = pickle.dumps((stage, errors))

    def run(block: pa.Table) -> Iterator[pa.Table]:
        return _stage_of_process(pickled)(block)

    run.__name__ = run.__qualname__ = stage.name
    return run


@lru_cache(maxsize=16)
def _stage_of_process(pickled: bytes) -> BlockStage:
    """Return the stage of this worker process. All of its tasks share it."""
    stage, errors = pickle.loads(pickled)  # noqa: S301 - our own bytes, from the driver
    return BlockStage(stage, errors)


class BlockStage:
    """Runs the steps of a stage over blocks."""

    def __init__(self, stage: Stage, errors: ErrorHandling) -> None:
        self._name = stage.name
        self._runner = StageRunner(stage, errors)
        self._texts = stage.texts
        self._runs_in_tasks = stage.replicas is None
        self._waits = not self._runs_in_tasks and stage.concurrent_batches == 1
        """Whether the process waits for rows between blocks."""
        self._memory = PeakMemory()
        self._ended: float | None = None
        """When the previous block was done."""

    def __call__(self, block: pa.Table) -> Iterator[pa.Table]:
        """Yield the block after the steps, in several blocks if a step makes large results."""
        if self._ended is not None and self._waits:
            self._runner.add_wait(time.perf_counter() - self._ended)
        for batch in computed_longest_first(self._runner, decode(block), self._texts):
            notes = (*batch.notes, *self._memory.notes(self._name), *retry_notes(self._name))
            # a task may be the last task of its process; an actor has too many calls for this
            times = self._runner.take_notes() if self._runs_in_tasks else ()
            yield encode(replace(batch, notes=(*notes, *times)))
        self._ended = time.perf_counter()
