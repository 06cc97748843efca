"""The plan as a Ray Data pipeline: read tasks, stages, write tasks."""

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
from batchinference.pipeline.execution.source import RowSource
from batchinference.pipeline.execution.step_runner import ErrorHandling, StageRunner, load_steps
from batchinference.pipeline.execution.table_sink import sink_for
from batchinference.pipeline.output.schema_rewrite import RewriteTask, rewrites
from batchinference.plan import Plan, Stage
from batchinference.plan.groups import CPU_GROUP, GROUP_LABEL, is_cpu_stage
from batchinference.plan.stages import TASK_CPUS, WRITE_CPUS
from batchinference.plan.writing import writers
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.quantities import memory_bytes

_UNFUSED: dict[str, Any] = {"max_calls": 0}
"""Ray's default for tasks, given all the same: Ray Data joins only operators with equal arguments,
and actors and write tasks do not have this one. So reading and task stages are joined with each
other, and never into an actor pool or a write task, which would run them one after the other."""
TASK_RETRIES = 10
"""How often a task is run again whose process died. Nodes come and go, but code that ends its
process does so every time, and the job must not go on for ever."""
ACTOR_RESTARTS = 20
"""How often an actor is started again whose process died."""


class Executor:
    """A pass over what is missing of the input."""

    def __init__(self, spec: BatchInferenceSpec, plan: Plan, prepared: AttemptRun) -> None:
        self._spec, self._plan, self._prepared = spec, plan, prepared
        self._oversight = ControlCallback.oversight = ExecutionControl()

    def run(self) -> None:
        """Returns when all rows are committed."""
        configure()
        # for what has none of its own, such as cutting blocks
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
        """Have the files of a finished output agree on their columns."""
        work = rewrites(self._prepared.attempt, end.pieces, compression)
        task: Any = ray.remote(**_of_write_tasks(self._plan))(_run)
        rewritten = ray.get([task.remote(rewrite) for rewrite in work.values()])
        changed = dict(zip(work, rewritten, strict=True))
        pieces = [changed.get(number, piece) for number, piece in enumerate(end.pieces)]
        return replace(end, pieces=pieces)

    def drain(self) -> None:
        """Make `run`, in another thread, end soon, when what is under way is committed."""
        self._oversight.drain()

    def give_up(self) -> None:
        """Make `run`, in another thread, cancel its tasks and raise."""
        self._oversight.give_up()

    @property
    def stage(self) -> str | None:
        """The last of the stages that have work; None before there is any."""
        return self._oversight.stage

    def _read(self) -> Dataset:
        prepared = self._prepared
        sizing = prepared.sizing.of_part(prepared.input.share(prepared.gaps))
        tasks = prepared.input.read_tasks(sizing.read_tasks, prepared.gaps)
        # cutting blocks keeps steps from joining the reading of their rows
        enough = 2 * len(tasks) > sizing.blocks and not self._spec.read.options.override_num_blocks
        dataset: Dataset = ray.data.read_datasource(
            RowSource(tasks),
            override_num_blocks=len(tasks) if enough else sizing.blocks,
            num_cpus=TASK_CPUS,
            label_selector=_selector(self._plan, CPU_GROUP),
            # rows in another order would have the ids of others
            ray_remote_args={"max_retries": TASK_RETRIES if prepared.input.repeatable else 0},
            **_UNFUSED,
        )
        return dataset


class Loading:
    """Loads each step once, as its replicas will, and keeps nothing. Engines of vLLM are left out:
    they take minutes to start."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._under_way: Any = None
        self._given_up = threading.Event()

    def run(self) -> None:
        """Raises what is wrong with a step."""
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
        """Those of a replica. The process ends with its task, so that it gives the device back."""
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
    """Settings of Ray Data for this process."""
    # of a job so small that it has fewer write tasks than may run
    warnings.filterwarnings("ignore", "The maximum number of concurrent tasks for 'Write'")
    # Ray prints it on the terminal of the user, who does not pass the argument
    warnings.filterwarnings("ignore", "`ray_remote_args` is deprecated")
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.raise_original_map_exception = True
    context.custom_execution_callback_classes = [ControlCallback]


def _selector(plan: Plan, group: str) -> dict[str, str] | None:
    """Where on a cluster tasks and actors go; a single machine has no groups."""
    return {GROUP_LABEL: group} if plan.groups else None


def _all_cpus(plan: Plan) -> float:
    """Those that Ray has, or will have once its groups have grown."""
    planned = sum(group.max * group.cpus for group in plan.groups)
    return max(planned, float(ray.cluster_resources().get("CPU", 0)))


def _of_write_tasks(plan: Plan) -> dict[str, Any]:
    """Ray's arguments of tasks that write."""
    arguments: dict[str, Any] = {"num_cpus": WRITE_CPUS, "max_retries": TASK_RETRIES}
    selector = _selector(plan, CPU_GROUP)
    return {**arguments, "label_selector": selector} if selector else arguments


def _cpus(stage: Stage, plan: Plan) -> float:
    """CPUs of a task or actor. Ray counts a pod's CPUs rounded up, and where replicas have pods of
    their own, a second one must not find room in what is rounded."""
    alone = bool(plan.groups) and not is_cpu_stage(stage)
    return math.ceil(stage.cpus) if alone else stage.cpus


def _memory(stage: Stage, plan: Plan) -> int | None:
    """Memory of an actor in bytes: on a single machine alone, where it tells how many of them
    there is room for. On a cluster it is that of the actor's own pod."""
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
    """A class for an actor pool. What it is made of is part of the class, because arguments that
    Ray keeps in its object store can be lost, and then an actor cannot be started again."""

    class StageActor:
        def __init__(self) -> None:
            self._failure: JobFailure | None = None
            try:
                self._runner = MemoryWatch(stage.name, StageRunner(stage, errors))
            except JobFailure as failure:
                # raised at the first batch: an error of a constructor loses its cause on the way
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
    """One runner a worker process, however many tasks that process runs."""
    stage, errors = pickle.loads(pickled)  # noqa: S301 - our own bytes, from the driver
    return MemoryWatch(stage.name, StageRunner(stage, errors))
