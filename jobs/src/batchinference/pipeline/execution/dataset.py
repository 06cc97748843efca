"""Runs the segments (adjacent steps) of a job with actor pools as operators of Ray Data.

A job with one pool has three segments. Tasks read and run the steps before the pool. Actors run the
model. Tasks run the steps after the pool and commit. Segments exchange rows as blocks."""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from threading import Event
from typing import Any

import pyarrow as pa
import ray.data
from ray.data import ActorPoolStrategy, DataContext, Dataset
from ray.data.block import Block, BlockAccessor, BlockMetadata
from ray.data.datasource import Datasink, Datasource, ReadTask
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from batchinference.credentials import NO_SECRETS, SecretVariables
from batchinference.pipeline.arrow import concat, joinable
from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.errors import EngineDied, JobFailure
from batchinference.pipeline.execution.block_codec import OWN_COLUMNS, decode, encode
from batchinference.pipeline.execution.chunk_commits import ChunkCommits, CommitRules
from batchinference.pipeline.execution.concurrent_batches import (
    ConcurrentBatches,
    concurrency_of_actors,
)
from batchinference.pipeline.execution.crash_isolation import NO_DEATHS, Isolation
from batchinference.pipeline.execution.dataset_control import ControlCallback, ObservedExecution
from batchinference.pipeline.execution.execution_control import ExecutionControl
from batchinference.pipeline.execution.length_sorting import WindowLimits
from batchinference.pipeline.execution.report_notes import process_notes
from batchinference.pipeline.execution.segment import Segment, unload_stages
from batchinference.pipeline.execution.step_runner import ErrorHandling
from batchinference.pipeline.execution.task_resources import (
    all_cpus,
    cpus_of,
    memory_of,
    pool_size,
    read_retries,
    replicas_per_device,
    selector,
    write_task_arguments,
)
from batchinference.pipeline.execution.worker_stop import StopRequest, until_stopped
from batchinference.pipeline.input import ReadRows
from batchinference.pipeline.model_turns import OCCUPANCY
from batchinference.pipeline.ray_compat import replaced, retries_of_this_task
from batchinference.pipeline.ray_data_compat import (
    errors_of_blocks,
    outputs_within,
    pass_on_when_stopping,
    prepare_joined_blocks,
    prompt_waits,
    whole_call,
)
from batchinference.pipeline.row_batch import READ_STEP, RowBatch, resized
from batchinference.pipeline.step_time import StepTime
from batchinference.pipeline.steps.result_cache import flush_caches
from batchinference.plan import Plan, Stage
from batchinference.plan.groups import CPU_GROUP
from batchinference.plan.stages import TASK_CPUS, with_preparations, writers

prepare_joined_blocks(joinable)
_UNFUSED: dict[str, Any] = {"max_calls": 0}
"""An argument of read tasks and task stages, which keeps Ray Data from fusing them with actor pools
and write tasks: it fuses only operators with equal arguments. Fused operators would take turns
instead of running at the same time. The value is Ray's default."""
ROWS_PER_ACTOR = 4096
"""Number of rows in all concurrent calls of an actor whose engine or endpoint batches rows."""
MAX_BLOCK_ROWS, READ_BYTES = 1 << 20, 32 << 20
"""Maximum rows and bytes of the blocks of read tasks."""


@dataclass(frozen=True)
class DatasetExecution:
    """The operators of one pass. `blocks` is the number of blocks into which the input is cut. The
    stages before the first pool that need TASK_CPUS run in the read tasks, if there are enough read
    tasks (`reads_run_steps`). A last stage without a pool runs in the tasks that commit."""

    plan: Plan
    tasks: list[ReadRows]
    blocks: int
    repeatable: bool
    errors: ErrorHandling
    committer: Committer
    rules: CommitRules
    control: ExecutionControl
    windows: WindowLimits | None = None
    """The limits of the windows in which pools sort texts by length. None (no windows) if the
    number of input rows is unknown."""
    reads_run_steps: bool = True
    isolation: Isolation = NO_DEATHS

    def run(self) -> None:
        """Run the operators until all rows are committed, except rows of lost tasks."""
        first, between, last = self._divided_stages()
        ControlCallback.execution = ObservedExecution(
            self.control,
            read=", ".join(["read", *(stage.name for stage in first if not stage.prepares)]),
            write=", ".join([*(stage.name for stage in last), "write"]),
            sized_reads=self._block_rows is not None,
            rows=self.rules.rows,
            seconds=self.rules.small_commit_seconds,
        )
        with prompt_waits(), ExitStack() as groups:
            context = groups.enter_context(ray_data_settings(selector(self.plan, CPU_GROUP)))
            groups.enter_context(errors_of_blocks(context, self.control.record_later))
            dataset = self._read(first)
            for stage in between:
                dataset = self._add_stage(dataset, stage, groups)
            arguments = write_task_arguments(self.plan, last)
            at_once = None if last else writers(all_cpus(self.plan))
            dataset.write_datasink(self.sink(last), ray_remote_args=arguments, concurrency=at_once)
            self.control.check()

    @property
    def _block_rows(self) -> int | None:
        """The maximum rows of a block of the read tasks. None if the number of input rows is
        unknown: Ray Data then determines the blocks."""
        if self.blocks == len(self.tasks):
            return MAX_BLOCK_ROWS
        return max(1, math.ceil(self.windows.rows / self.blocks)) if self.windows else None

    def _divided_stages(self) -> tuple[list[Stage], list[Stage], list[Stage]]:
        """Return three lists of stages: those in the read tasks, those that are operators, and
        those in the tasks that commit."""
        stages = list(with_preparations(self.plan.stages))
        # read tasks have TASK_CPUS
        small = takewhile(lambda s: s.replicas is None and s.cpus == TASK_CPUS, stages)
        first = list(small) if self.reads_run_steps else []
        rest = stages[len(first) :]
        ends = rest and rest[-1].replicas is None
        return (first, rest[:-1], rest[-1:]) if ends else (first, rest, [])

    def sink(self, stages: list[Stage]) -> CommitDatasink:
        """Return the datasink whose tasks run these stages and commit the rows."""
        return CommitDatasink(self.committer, self.rules, self._segment(stages))

    def _segment(self, stages: list[Stage]) -> Segment:
        return Segment.of(stages, self.errors, self.run_id, self.isolation)

    @property
    def run_id(self) -> str:
        """The ID of the pass."""
        return self.committer.job_pass.lease.run

    def _read(self, stages: list[Stage]) -> Dataset:
        rows, blocks = self._block_rows, math.ceil(self.blocks / len(self.tasks))
        settings = self._segment(stages), self.errors.secrets, rows or MAX_BLOCK_ROWS, blocks
        dataset: Dataset = ray.data.read_datasource(
            RowsDatasource([BlockReader(task, *settings) for task in self.tasks]),
            override_num_blocks=self.blocks if rows is None else len(self.tasks),
            num_cpus=TASK_CPUS,
            label_selector=selector(self.plan, CPU_GROUP),
            ray_remote_args={"max_retries": read_retries(self.plan, repeatable=self.repeatable)},
            **_UNFUSED,
        )
        return dataset

    def _add_stage(self, dataset: Dataset, stage: Stage, groups: ExitStack) -> Dataset:
        plan = self.plan
        common: dict[str, Any] = {
            "batch_format": "pyarrow",
            "num_cpus": cpus_of(stage, plan),
            "udf_modifying_row_count": False,
            "label_selector": selector(plan, plan.group_of(stage) if plan.groups else ""),
        }
        if stage.replicas is None:
            # with few read tasks, an extra retry keeps Ray from fusing the stage with them
            common |= {"max_retries": plan.task_retries + (not self.reads_run_steps), **_UNFUSED}
            # a call for each block: larger calls would wait for the rows of a slow input
            task = _task(stage.name, self._segment([stage]))
            return dataset.map_batches(task, batch_size=None, **common)
        return self._add_pool(dataset, stage, groups, common)

    def _add_pool(
        self, dataset: Dataset, stage: Stage, groups: ExitStack, common: dict[str, Any]
    ) -> Dataset:
        plan = self.plan
        smallest, largest = pool_size(stage, plan)
        placement = placement_arguments(stage, plan, dataset, groups)
        if stage.name == self.control.measured_step:
            smallest = largest = replicas_per_device(stage)
            group = create_group(groups, **group_of_replicas(stage, plan))
            one_device = {"scheduling_strategy": PlacementGroupSchedulingStrategy(group)}
            placement = {"ray_remote_args_fn": lambda: one_device}
        arguments = {
            **common,
            "num_gpus": stage.gpus or None,
            "resources": dict(stage.custom) or None,
            "accelerator_type": stage.accelerator,
            "memory": memory_of(stage, plan),
            "max_task_retries": plan.task_retries,
            "max_restarts": plan.actor_restarts,
            **placement,
        }
        concurrency = concurrency_of_actors(stage, self._blocks_at_once(largest))
        return dataset.map_batches(
            _actor(stage, replace(self._segment([stage]), concurrent=bool(concurrency))),
            batch_size=self._rows_at_once(stage, largest),
            compute=ActorPoolStrategy(min_size=smallest, max_size=largest, **concurrency),
            **arguments,
        )

    def _rows_at_once(self, stage: Stage, replicas: int) -> int | None:
        """Return the batch size for Ray Data. Steps that pad texts get windows. Other steps get all
        rows of a call. A call is one block if the stage batches itself or has no batch size.
        Otherwise, it has at least the rows of a batch, or of a window if the step skips rows."""
        if not stage.batch_size or stage.batches_itself:
            return whole_call(1) if stage.gpus else None  # Ray refuses None for actors with GPUs
        rows = stage.batch_size
        if self.windows is not None and (stage.padded_texts or stage.skips_rows):
            rows = self.windows.window_rows(rows, replicas)
        return rows if stage.padded_texts else whole_call(rows)

    def _blocks_at_once(self, replicas: int) -> int:
        """Return how many blocks an actor should have at the same time. Together, they have up to
        ROWS_PER_ACTOR rows. All actors can get as many blocks."""
        if self.windows is None:
            return 1
        rows = max(1, self.windows.rows // self.blocks)
        return min(ROWS_PER_ACTOR // rows, self.blocks // replicas)


@contextmanager
def ray_data_settings(nodes: dict[str, str] | None) -> Iterator[DataContext]:
    """While the block runs, change the Ray Data settings of this process, and yield them. After the
    block, code of the user, as in a notebook, has its own settings again. `nodes` is the label
    selector of Ray's own tasks, such as those that split blocks."""
    # both warnings are harmless: a small job has few write tasks, and no user passes the arguments
    warnings.filterwarnings("ignore", "The maximum number of concurrent tasks for 'Write'")
    warnings.filterwarnings("ignore", "`ray_remote_args` is deprecated")
    context = DataContext.get_current()
    settings = {
        "enable_progress_bars": False,
        "raise_original_map_exception": True,
        "custom_execution_callback_classes": [ControlCallback],
    }
    with replaced(context, **settings), replaced(context.execution_options, label_selector=nodes):
        yield context


class RowsDatasource(Datasource):
    """Yields the rows of prepared read tasks as blocks."""

    def __init__(self, tasks: Sequence[BlockReader]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tasks = tasks

    def estimate_inmemory_data_size(self) -> int | None:
        """Return None: the size is unknown."""
        return None

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: DataContext | None = None,
    ) -> list[ReadTask]:
        """Return all prepared tasks, regardless of the number that Ray Data asks for."""
        metadata = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [ReadTask(task, metadata) for task in self._tasks]


@dataclass(frozen=True)
class BlockReader:
    """Reads rows, runs the first segment, and yields the results as blocks. A block has `rows`
    rows, or fewer with about READ_BYTES. `blocks` is the expected number of blocks."""

    read: ReadRows
    segment: Segment
    secrets: SecretVariables = NO_SECRETS
    rows: int = MAX_BLOCK_ROWS
    blocks: int = 1

    def __call__(self) -> Iterator[pa.Table]:
        return sized_blocks(self._blocks(), self.rows, self.blocks)

    def _blocks(self) -> Iterator[pa.Table]:
        read_time = StepTime(READ_STEP)
        read = read_time.of(self.read(), lambda batch: len(batch.input_ids))
        with StopRequest(self.segment.run_id).stop_event() as stopping:
            yield from map(encode, until_stopped(self._results(read, stopping), stopping))
        process = process_notes(self.segment.run_id, READ_STEP)
        if notes := (*process, *read_time.take_rest(), *self.segment.take_notes()):
            yield encode(RowBatch(notes=notes))

    def _results(self, read: Iterator[RowBatch], stopping: Event) -> Iterator[RowBatch]:
        if self.segment.has_stages:
            return self.segment.of_read(read, stopping)
        return resized(read, lambda: self.rows, READ_BYTES)


def sized_blocks(
    blocks: Iterable[pa.Table], rows: int, expected: int, max_bytes: int = READ_BYTES
) -> Iterator[pa.Table]:
    """Yield the rows of blocks in new blocks of about `rows` rows, or of fewer rows with about
    `max_bytes`. Some rows wait for the next block, so that the last block is not small. `rows`
    comes from an estimate of the input, so it doubles after each `expected` blocks."""
    waiting, waiting_rows, size, made = list[pa.Table](), 0, 0, 0
    for block in blocks:
        waiting.append(block)
        waiting_rows, size = waiting_rows + block.num_rows, size + block.nbytes
        if waiting_rows < 2 * rows and size < max_bytes:
            continue
        joined = concat(waiting)
        end = waiting_rows if size >= max_bytes else (waiting_rows // rows - 1) * rows
        sized = [*_divided(joined.slice(0, end), rows, max_bytes)]
        yield from sized
        made += len(sized)
        if made > expected:
            rows, made = 2 * rows, 0
        rest = joined.slice(end)
        waiting, waiting_rows, size = [rest], rest.num_rows, rest.nbytes
    if waiting_rows:
        yield from _divided(concat(waiting), rows, max_bytes)


def _divided(block: pa.Table, rows: int, max_bytes: int) -> Iterator[pa.Table]:
    """Yield the rows of a block in equal blocks of about `rows` rows or `max_bytes`."""
    parts = max(1, round(len(block) / rows), block.nbytes // max_bytes)
    size = math.ceil(len(block) / parts)
    yield from (block.slice(start, size) for start in range(0, len(block), size))


class CommitDatasink(Datasink[None]):
    """The datasink of a job. Its write tasks run the last segment and commit the rows."""

    def __init__(self, committer: Committer, rules: CommitRules, segment: Segment) -> None:
        self._committer, self._rules, self._segment = committer, rules, segment

    @property
    def min_rows_per_write(self) -> int:
        """The number of rows that Ray Data collects for a write task."""
        return self._rules.rows

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Raise JobFailure if the rows have columns that cannot be written. Checks nothing if a
        step follows. Ray calls this on the driver with the schema of the first rows."""
        columns = schema.names if isinstance(schema, pa.Schema) else []
        if not self._segment.has_stages:
            names = [name for name in columns if name not in OWN_COLUMNS]
            self._committer.encoder.check_columns(names)

    def write(self, blocks: Iterable[Block], ctx: object) -> None:
        """Run the last segment over blocks, and commit the results. Ray calls this in a task."""
        tables = [BlockAccessor.for_block(block).to_arrow() for block in blocks]
        tables = [table for table in tables if table.num_rows]
        if not tables:
            return
        task, take_notes = ctx.task_idx, self._segment.take_notes  # type: ignore[attr-defined]
        with (
            StopRequest(self._segment.run_id).stop_event() as stopping,
            ChunkCommits(self._committer, self._rules, task, take_notes) as commits,
        ):
            commits.add_results(
                iter([decode(concat(tables))]),
                lambda rows: self._results(rows, stopping),
                retried=retries_of_this_task() > 0,
                isolated=self._segment.replaces_process(),
            )

    def _results(self, rows: Iterator[RowBatch], stopping: Event) -> Iterator[RowBatch]:
        if not self._segment.has_stages:
            return rows
        (batch,) = rows
        return self._segment.of_block(batch, stopping)


def _actor(stage: Stage, segment: Segment) -> type:
    """Return a class for an actor pool. The segment is part of the class. A constructor argument
    could get lost in Ray's object store, and Ray could not restart the actor."""

    class SegmentActor:
        def __init__(self) -> None:
            self._failure: JobFailure | None = None
            self._stopping = stopping = StopRequest(segment.run_id).watched_for_ever()
            pass_on_when_stopping(stopping)
            try:
                load_in_pool(segment)
            except JobFailure as failure:
                # raised at the first batch, because Ray drops the cause of constructor errors
                self._failure = failure
            calls = BlockCalls(stage.name, segment, stopping)
            batches_itself = stage.batches_itself
            self._run = ConcurrentBatches(stage, calls, stopping) if batches_itself else calls

        def __del__(self) -> None:  # runs when Ray Data ends the actor
            try:
                flush_caches()
            finally:
                unload_stages()
                if stage.pods > 1:
                    remove_own_group()

        def __call__(self, block: pa.Table) -> Iterator[pa.Table]:
            if self._failure is not None:
                raise self._failure
            try:
                yield from self._run(block)
            except EngineDied as error:
                exit_process(error)
            except Exception:
                self._stopping.set()  # the error ends the pass
                yield block.slice(0, 0)  # lets Ray pass on the results before the error
                raise

    SegmentActor.__name__ = SegmentActor.__qualname__ = stage.name
    return SegmentActor


def load_in_pool(segment: Segment) -> None:
    """Load the stages of an actor, and let them measure how busy it is. Raises JobFailure."""
    outputs_within(OCCUPANCY.passing_on)
    segment.load().note_occupancy()


def exit_process(error: EngineDied) -> None:
    """End this process, so that Ray restarts the actor with a new engine. If an error was raised
    instead, Ray would retry the call in the same actor."""
    sys.stderr.write(f"{error.message}\n")
    sys.stderr.flush()
    os._exit(1)


def _task(name: str, segment: Segment) -> Callable[[pa.Table], Iterator[pa.Table]]:
    def run(block: pa.Table) -> Iterator[pa.Table]:
        with StopRequest(segment.run_id).stop_event() as stopping:
            yield from BlockCalls(name, segment, stopping)(block)
            # this task may be the last of its process. Actors have too many calls for this
            if notes := tuple(segment.take_notes()):
                yield encode(RowBatch(notes=notes))

    run.__name__ = run.__qualname__ = name
    return run


class BlockCalls:
    """Runs a segment over the blocks that an actor or a task gets."""

    def __init__(self, name: str, segment: Segment, stopping: Event) -> None:
        self._name, self._segment, self._stopping = name, segment, stopping

    def __call__(self, block: pa.Table) -> Iterator[pa.Table]:
        """Return the results of a block, in several blocks if they are large."""
        return OCCUPANCY.working(self._results(block))

    def _results(self, block: pa.Table) -> Iterator[pa.Table]:
        for batch in self._segment.of_block(decode(block), self._stopping):
            notes = (*batch.notes, *process_notes(self._segment.run_id, self._name))
            yield encode(replace(batch, notes=notes))


def placement_arguments(
    stage: Stage, plan: Plan, dataset: Dataset, groups: ExitStack
) -> dict[str, Any]:
    """Return the arguments of `dataset.map_batches` that give each actor a placement group. Empty
    on one machine, or if a replica fits into one pod. The group has the GPUs of a replica on
    several pods. The actor has the CPUs of its first bundle, but no GPU. The library that runs the
    model starts a process for each GPU of the group."""
    if not plan.groups or stage.pods == 1:
        return {}
    bundle = {"CPU": stage.cpus * stage.pods / stage.gpus, "GPU": 1.0}
    kind = {f"accelerator_type:{stage.accelerator}": 0.001} if stage.accelerator else {}
    bundles = [{**bundle, **kind}] * int(stage.gpus)
    nodes = [selector(plan, plan.group_of(stage))] * len(bundles)

    def own_group() -> dict[str, Any]:
        group = create_group(groups, bundles=bundles, bundle_label_selector=nodes)
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
        return {"scheduling_strategy": strategy}

    _disable_memory_detector(dataset)
    return {"num_gpus": 0, "num_cpus": bundle["CPU"], "ray_remote_args_fn": own_group}


def create_group(groups: ExitStack, **arguments: Any) -> PlacementGroup:
    """Return a new placement group, which is removed at the end of `groups`. Otherwise, Ray would
    keep its devices reserved after the end of the pass."""
    group: PlacementGroup = ray.util.placement_group(**arguments)
    groups.callback(_remove_group, group)
    return group


def _remove_group(group: PlacementGroup) -> None:
    with suppress(Exception):  # if Ray does not answer, the user gets the error of the pass
        ray.util.remove_placement_group(group)


def remove_own_group() -> None:
    """Remove the placement group of this actor, if it has one. Ray Data may end the actor before
    the end of the pass, and other actors can then use the devices."""
    if (group := ray.util.get_current_placement_group()) is not None:
        _remove_group(group)


def group_of_replicas(stage: Stage, plan: Plan) -> dict[str, Any]:
    """Return the arguments of a placement group with one device and all that its replicas need."""
    nodes = selector(plan, plan.group_of(stage)) if plan.groups else None
    number = replicas_per_device(stage)
    needs = {"CPU": cpus_of(stage, plan), "memory": memory_of(stage, plan), **dict(stage.custom)}
    kind = {f"accelerator_type:{stage.accelerator}": 0.001} if stage.accelerator else {}
    needs |= kind
    bundle = {"GPU": 1.0, **{name: number * each for name, each in needs.items() if each}}
    return {"bundles": [bundle], "bundle_label_selector": [nodes] if nodes else None}


def _disable_memory_detector(dataset: Dataset) -> None:
    """Disable Ray's high memory detector; `execution.report_notes` records the peak memory instead.
    The detector requests the arguments of actors that it never starts, again and again. Each
    request creates a placement group, which would reserve unused GPUs (ray#64012)."""
    config = dataset.context.issue_detectors_config
    config.detectors = [
        detector for detector in config.detectors if detector.__name__ != "HighMemoryIssueDetector"
    ]
