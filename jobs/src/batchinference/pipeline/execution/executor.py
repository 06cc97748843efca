"""Runs a plan as a Ray Data pipeline of read tasks, stages and write tasks."""

from __future__ import annotations

import math
import pickle
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext, Dataset

from batchinference.pipeline.commit.manifest_entry import ManifestEntry
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.execution.attempt_run import AttemptRun
from batchinference.pipeline.execution.control import ControlCallback, ExecutionControl
from batchinference.pipeline.execution.memory import MemoryWatch
from batchinference.pipeline.execution.sink import sink_for
from batchinference.pipeline.execution.source import RowSource
from batchinference.pipeline.execution.step_runner import ErrorHandling, StageRunner, load_steps
from batchinference.pipeline.output.schema_rewrite import RewriteTask, rewrites
from batchinference.plan import Plan, Stage
from batchinference.plan.groups import CPU_GROUP, GROUP_LABEL, is_cpu_stage
from batchinference.plan.stages import TASK_CPUS, WRITE_CPUS
from batchinference.plan.writing import writers
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.quantities import memory_bytes

_UNFUSED: dict[str, Any] = {"max_calls": 0}
"""Ray's default for tasks, passed explicitly. Ray Data fuses only operators with equal arguments,
and actors and write tasks do not have this one. So read tasks and task stages are fused with each
other, but never into an actor pool or a write task, which would run them sequentially."""
TASK_RETRIES = 10
"""Retries of a task whose process died. Nodes may be lost, but code that crashes its process does
so in every retry, and the job must not run forever."""
ACTOR_RESTARTS = 20
"""Restarts of an actor whose process died."""


class Executor:
    """Runs an attempt: processes the missing rows of the input."""

    def __init__(self, spec: BatchInferenceSpec, plan: Plan, prepared: AttemptRun) -> None:
        self._spec, self._plan, self._prepared = spec, plan, prepared
        self._oversight = ControlCallback.oversight = ExecutionControl()

    def run(self) -> None:
        """Run the attempt until all rows are committed."""
        configure()
        # for tasks without their own selector, such as those that split blocks
        options = DataContext.get_current().execution_options
        options.label_selector = _selector(self._plan, CPU_GROUP)
        attempt, sizing = self._prepared.attempt, self._prepared.sizing
        dataset = self._read()
        errors = ErrorHandling(self._spec.errors.tolerant, attempt.layout.input)
        for stage in self._plan.stages:
            dataset = _add(dataset, stage, self._plan, errors)
        sink = sink_for(self._spec.write, attempt, sizing.rows_per_file)
        arguments, at_once = _of_write_tasks(self._plan), writers(_all_cpus(self._plan))
        dataset.write_datasink(sink, ray_remote_args=arguments, concurrency=at_once)

    def give_one_schema(self, end: Snapshot, compression: str) -> Snapshot:
        """Unify the schemas of the files of a finished output. Return the new snapshot."""
        work = rewrites(self._prepared.attempt, end.entries, compression)
        task: Any = ray.remote(**_of_write_tasks(self._plan))(_run)
        rewritten = ray.get([task.remote(rewrite) for rewrite in work.values()])
        changed = dict(zip(work, rewritten, strict=True))
        entries = [changed.get(number, entry) for number, entry in enumerate(end.entries)]
        return replace(end, entries=entries)

    def drain(self) -> None:
        """Make `run`, in another thread, return soon, after running tasks are committed."""
        self._oversight.drain()

    def give_up(self) -> None:
        """Make `run`, in another thread, cancel its tasks and raise."""
        self._oversight.give_up()

    @property
    def stage(self) -> str | None:
        """The last stage that has work; None before any stage has work."""
        return self._oversight.stage

    def _read(self) -> Dataset:
        prepared = self._prepared
        sizing = prepared.sizing.of_part(prepared.input.share(prepared.gaps))
        tasks = prepared.input.read_tasks(sizing.read_tasks, prepared.gaps)
        # splitting blocks prevents Ray Data from fusing steps with the read tasks
        enough = 2 * len(tasks) > sizing.blocks and not self._spec.read.options.override_num_blocks
        dataset: Dataset = ray.data.read_datasource(
            RowSource(tasks),
            override_num_blocks=len(tasks) if enough else sizing.blocks,
            num_cpus=TASK_CPUS,
            label_selector=_selector(self._plan, CPU_GROUP),
            # if a retry reads rows in another order, they get ids of other rows
            ray_remote_args={"max_retries": TASK_RETRIES if prepared.input.repeatable else 0},
            **_UNFUSED,
        )
        return dataset


class Loading:
    """Loads each step once, with the resources of a replica, and discards the result.

    vLLM engines are skipped because they take minutes to start."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._under_way: Any = None
        self._given_up = threading.Event()

    def run(self) -> None:
        """Load the steps. Raises the failure of a step."""
        for stage in self._plan.stages:
            if stage.steps and not stage.is_llm and not self._given_up.is_set():
                task: Any = ray.remote(**self._arguments(stage))(_load)
                self._under_way = task.remote(stage)
                ray.get(self._under_way)

    def drain(self) -> None:
        self.give_up()

    def give_up(self) -> None:
        """Make `run`, in another thread, raise soon."""
        self._given_up.set()
        if self._under_way is not None:
            ray.cancel(self._under_way, force=True)

    def _arguments(self, stage: Stage) -> dict[str, Any]:
        """Return Ray's arguments for a replica. `max_calls` ends the process to free the device."""
        selector = _selector(self._plan, self._plan.group_of(stage)) if self._plan.groups else None
        wanted = {
            "num_gpus": stage.gpus,
            "resources": dict(stage.custom),
            "accelerator_type": stage.accelerator,
            "memory": _memory(stage, self._plan),
            "label_selector": selector,
        }
        given = {name: value for name, value in wanted.items() if value}
        return {"num_cpus": _cpus(stage, self._plan), "max_calls": 1, **given}


def _load(stage: Stage) -> None:
    load_steps(stage)


def _run(rewrite: RewriteTask) -> ManifestEntry:
    return rewrite()


def configure() -> None:
    """Set the Ray Data settings of this process."""
    # a small job may have fewer write tasks than are allowed to run at a time
    warnings.filterwarnings("ignore", "The maximum number of concurrent tasks for 'Write'")
    # Ray prints this on the terminal of the user, who did not pass the argument
    warnings.filterwarnings("ignore", "`ray_remote_args` is deprecated")
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.raise_original_map_exception = True
    context.custom_execution_callback_classes = [ControlCallback]


def _selector(plan: Plan, group: str) -> dict[str, str] | None:
    """Return the label selector of a worker group; None on a single machine, without groups."""
    return {GROUP_LABEL: group} if plan.groups else None


def _all_cpus(plan: Plan) -> float:
    """Return the CPUs that Ray has, or will have when its worker groups are at their maximum."""
    planned = sum(group.max * group.cpus for group in plan.groups)
    return max(planned, float(ray.cluster_resources().get("CPU", 0)))


def _of_write_tasks(plan: Plan) -> dict[str, Any]:
    """Return Ray's arguments for write tasks."""
    arguments: dict[str, Any] = {"num_cpus": WRITE_CPUS, "max_retries": TASK_RETRIES}
    selector = _selector(plan, CPU_GROUP)
    return {**arguments, "label_selector": selector} if selector else arguments


def _cpus(stage: Stage, plan: Plan) -> float:
    """Return the CPUs of a task or actor.

    Ray rounds the CPUs of a pod up. If replicas have pods of their own, their CPUs are rounded up
    too, so that a second replica does not fit into the remainder."""
    alone = bool(plan.groups) and not is_cpu_stage(stage)
    return math.ceil(stage.cpus) if alone else stage.cpus


def _memory(stage: Stage, plan: Plan) -> int | None:
    """Return the memory of an actor in bytes; None on a cluster or if it is not set.

    On a single machine it limits the number of actors. On a cluster, the actor's own pod has this
    memory."""
    return None if plan.groups or stage.memory is None else memory_bytes(stage.memory)


def _add(dataset: Dataset, stage: Stage, plan: Plan, errors: ErrorHandling) -> Dataset:
    selector = _selector(plan, plan.group_of(stage)) if plan.groups else None
    common: dict[str, Any] = {
        "batch_format": "pyarrow",
        "num_cpus": _cpus(stage, plan),
        "udf_modifying_row_count": False,
        "label_selector": selector,
    }
    if stage.rows_per_block:
        return dataset.repartition(target_num_rows_per_block=stage.rows_per_block)
    if stage.replicas is None:
        task = _task(stage, errors)
        retries = {"max_retries": TASK_RETRIES, **_UNFUSED}
        return dataset.map_batches(task, batch_size=None, **common, **retries)
    if stage.is_llm:
        return _add_llm(dataset, stage, plan, errors)
    return dataset.map_batches(
        _actor(stage, errors),
        batch_size=stage.batch_size,
        compute=ActorPoolStrategy(min_size=stage.replicas.min, max_size=stage.replicas.max),
        num_gpus=stage.gpus or None,
        resources=dict(stage.custom) or None,
        accelerator_type=stage.accelerator,
        memory=_memory(stage, plan),
        max_task_retries=TASK_RETRIES,
        max_restarts=ACTOR_RESTARTS,
        **common,
    )


def _add_llm(dataset: Dataset, stage: Stage, plan: Plan, errors: ErrorHandling) -> Dataset:
    from batchinference.pipeline.execution.vllm_stage import add_llm
    from batchinference.pipeline.runtimes.vllm.processor import NodeSelectors, RetryOptions

    engine = _selector(plan, plan.group_of(stage)) if plan.groups else None
    nodes = NodeSelectors(engine, _selector(plan, CPU_GROUP))
    of_actors = {"max_task_retries": TASK_RETRIES, "max_restarts": ACTOR_RESTARTS}
    tries = RetryOptions({"max_retries": TASK_RETRIES, **_UNFUSED}, of_actors)
    return add_llm(dataset, stage, errors, nodes, tries)


def _actor(stage: Stage, errors: ErrorHandling) -> type:
    """Return a class for an actor pool.

    The class contains its arguments. Constructor arguments are in Ray's object store and can be
    lost, and then Ray cannot restart the actor."""

    class StageActor:
        def __init__(self) -> None:
            self._failure: JobFailure | None = None
            try:
                self._runner = MemoryWatch(stage.name, StageRunner(stage, errors))
            except JobFailure as failure:
                # raised at the first batch: Ray drops the cause of an error in a constructor
                self._failure = failure

        def __call__(self, table: pa.Table) -> pa.Table:
            if self._failure is not None:
                raise self._failure
            return self._runner(table)

    StageActor.__name__ = StageActor.__qualname__ = stage.name
    return StageActor


def _task(stage: Stage, errors: ErrorHandling) -> Callable[[pa.Table], pa.Table]:
    pickled = pickle.dumps((stage, errors))

    def run(table: pa.Table) -> pa.Table:
        return _runner_of_process(pickled)(table)

    run.__name__ = run.__qualname__ = stage.name
    return run


@lru_cache(maxsize=16)
def _runner_of_process(pickled: bytes) -> MemoryWatch:
    """Return the runner of this worker process, which all its tasks share."""
    stage, errors = pickle.loads(pickled)  # noqa: S301 - our own bytes, from the driver
    return MemoryWatch(stage.name, StageRunner(stage, errors))
