"""The plan as a Ray Data pipeline: read tasks, stages, write tasks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pyarrow as pa
import ray.data
from ray.data import ActorPoolStrategy, DataContext, Dataset

from batchinference.pipeline.failures import JobFailure
from batchinference.pipeline.prepare import Prepared
from batchinference.pipeline.sink import Commit, CommitSink
from batchinference.pipeline.source import FileRows, FileSource
from batchinference.pipeline.stage import ErrorHandling, StageRunner
from batchinference.pipeline.writers import writer_for
from batchinference.plan import Plan, Stage
from batchinference.plan.groups import CPU_GROUP, GROUP_LABEL
from batchinference.plan.stages import TASK_CPUS, WRITE_CPUS
from batchinference.spec.job import BatchInferenceSpec

_UNFUSED: dict[str, Any] = {"max_calls": 0}
"""Ray's default for tasks, given all the same: Ray Data joins only operators with equal arguments,
and actors and write tasks do not have this one. So reading and task stages are joined with each
other, and never into an actor pool or a write task, which would run them one after the other."""


def execute(spec: BatchInferenceSpec, plan: Plan, prepared: Prepared) -> None:
    """Run the job's one pass over its input. Returns when all rows are committed."""
    configure()
    file_rows = FileRows(prepared.frozen.root, prepared.reader, spec.read.options.include_paths)
    source = FileSource(prepared.frozen, file_rows, prepared.sizing.read_tasks)
    dataset = ray.data.read_datasource(
        source,
        override_num_blocks=prepared.sizing.blocks,
        num_cpus=TASK_CPUS,
        label_selector=_selector(plan, CPU_GROUP),
        **_UNFUSED,
    )
    errors = ErrorHandling(spec.errors.tolerant, prepared.attempt.layout.input)
    for stage in plan.stages:
        dataset = _add(dataset, stage, plan, errors)
    commit = Commit(prepared.attempt.layout, prepared.attempt.number, writer_for(spec.write))
    arguments: dict[str, Any] = {"num_cpus": WRITE_CPUS}
    if selector := _selector(plan, CPU_GROUP):
        arguments["label_selector"] = selector
    dataset.write_datasink(
        CommitSink(commit, prepared.sizing.rows_per_file), ray_remote_args=arguments
    )


def configure() -> None:
    """Settings of Ray Data for this process."""
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.raise_original_map_exception = True


def _selector(plan: Plan, group: str) -> dict[str, str] | None:
    """Where on a cluster tasks and actors go; a single machine has no groups."""
    return {GROUP_LABEL: group} if plan.groups else None


def _add(dataset: Dataset, stage: Stage, plan: Plan, errors: ErrorHandling) -> Dataset:
    selector = _selector(plan, plan.group_of(stage)) if plan.groups else None
    common: dict[str, Any] = {
        "batch_format": "pyarrow",
        "num_cpus": stage.cpus,
        "udf_modifying_row_count": False,
        "label_selector": selector,
    }
    if stage.replicas is None:
        return dataset.map_batches(_task(stage, errors), batch_size=None, **common, **_UNFUSED)
    return dataset.map_batches(
        _actor(stage, errors),
        batch_size=stage.batch_size,
        compute=ActorPoolStrategy(min_size=stage.replicas.min, max_size=stage.replicas.max),
        num_gpus=stage.gpus or None,
        **common,
    )


def _actor(stage: Stage, errors: ErrorHandling) -> type:
    """A class for an actor pool. What it is made of is part of the class, because arguments that
    Ray keeps in its object store can be lost, and then an actor cannot be started again."""

    class StageActor:
        def __init__(self) -> None:
            self._failure: JobFailure | None = None
            try:
                self._runner = StageRunner(stage, errors)
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
def _runner_of_process(pickled: bytes) -> StageRunner:
    """One runner a worker process, however many tasks that process runs."""
    stage, errors = pickle.loads(pickled)  # noqa: S301 - our own bytes, from the driver
    return StageRunner(stage, errors)
