"""Computes the plan of a job from its spec: the stages and the worker groups.

The operator renders pods from the same plan that the pipeline runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import computed_field

from batchinference.plan.column_checks import check_columns
from batchinference.plan.groups import CPU_GROUP, WorkerGroup, group_of, groups_of
from batchinference.plan.machine import fit_to_machine, fit_to_memory
from batchinference.plan.stages import (
    TASK_CPUS,
    WRITE_CPUS,
    Stage,
    cpus_with_writers,
    stages_of,
    with_devices,
)
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.problems import raise_for_problems
from batchinference.spec.profiles import GPU
from batchinference.spec.quantities import memory_bytes


@dataclass(frozen=True)
class Plan:
    """The stages between reading and writing, and the worker groups that they run on."""

    stages: tuple[Stage, ...]
    groups: tuple[WorkerGroup, ...]
    notes: tuple[str, ...] = ()
    """How the plan differs from the job file, because the machine lacks resources."""
    faulty_nodes: tuple[str, ...] = ()
    """The ids of Ray nodes that are not used, because a device failed or processes died on them."""
    task_retries: int = 10
    """Maximum retries of a task whose process died. The code of the task may always kill it."""
    actor_restarts: int = 20
    """Maximum restarts of an actor whose process died."""
    measured_seconds: float = 20.0
    """Seconds in which each number of replicas per device is measured (`Stage.searches`)."""

    @computed_field  # type: ignore[prop-decorator]  # earlier images require it in the plan file
    @property
    def single_segment(self) -> bool:
        """Whether no step needs a pool. Each task then reads a part of the input, runs all steps
        and writes the results. For some inputs and outputs, rows still move between tasks
        (`Executor`)."""
        return not any(stage.needs_pool for stage in self.stages)

    @property
    def task_cpus(self) -> float:
        """The CPUs of a task that reads and runs all steps."""
        return max([TASK_CPUS, *(stage.cpus for stage in self.stages)])

    def group_of(self, stage: Stage) -> str:
        """Return the name of the worker group that a stage runs on."""
        return group_of(stage, list(self.groups))

    def disk_bytes(self, group: WorkerGroup) -> int:
        """Return the bytes that the steps of a group request on the disk of a pod. A pod of the
        group `cpu` runs all steps of the group, and gets the sum of their requests. A pod of
        another group runs one of the steps, and gets the highest request."""
        requests = [
            memory_bytes(step.resources.ephemeral_storage)
            for stage in self.stages
            if self.group_of(stage) == group.name
            for step in stage.steps
            if step.resources and step.resources.ephemeral_storage
        ]
        return sum(requests) if group.name == CPU_GROUP else max(requests, default=0)

    def on_machine(self, resources: Mapping[str, float]) -> Plan:
        """Return the plan for a machine with the Ray resources `resources`. If there are not enough
        devices for one replica of each step, steps run on the CPU."""
        stages, notes = fit_to_machine(self.stages, resources)
        return replace(self, stages=tuple(stages), notes=tuple(notes))

    def within_memory(self, memory: float | None) -> Plan:
        """Return the plan for replicas that have `memory` bytes together. Memory requests are
        removed if one replica of each pool does not fit."""
        stages, notes = fit_to_memory(self.stages, memory)
        return replace(self, stages=tuple(stages), notes=(*self.notes, *notes))


def plan_for_cluster(spec: BatchInferenceSpec) -> Plan:
    """Return the plan for a cluster. Raises SpecError for wrong columns or unsuitable workers."""
    stages = _checked_stages(spec)
    # with a model, separate tasks may read and write, and these need CPUs besides the pools
    single_task = all(stage.replicas is None for stage in stages)
    gang = bool(spec.cluster.gang_scheduling or spec.cluster.queue_name)
    groups = groups_of(stages, spec.cluster.workers, single_segment=single_task, gang=gang)
    return Plan(tuple(stages), tuple(groups))


def plan_for_machine(
    spec: BatchInferenceSpec,
    gpus: int = 0,
    custom: Mapping[str, float] | None = None,
    memory: float | None = None,
) -> Plan:
    """Return the plan for one machine with `gpus` GPUs, the custom resources `custom`, and `memory`
    bytes for replicas. If `memory` is None, memory requests are removed without a note."""
    return requested_plan(spec).on_machine({**(custom or {}), GPU: gpus}).within_memory(memory)


def requested_plan(spec: BatchInferenceSpec) -> Plan:
    """Return the plan as the spec requests it, without worker groups and for any machine. Raises
    SpecError for wrong columns."""
    return Plan(tuple(_checked_stages(spec)), ())


def ray_cpus(plan: Plan, machine: int) -> int:
    """Return the number of CPUs with which Ray starts on a machine with `machine` CPUs."""
    if plan.single_segment:
        return max(machine, math.ceil(plan.task_cpus))
    return max(cpus_with_writers(machine, _part_of_cpu(plan)), math.ceil(cpus_needed(plan)))


def _part_of_cpu(plan: Plan) -> float:
    """Return the fractional part of the CPUs of all pools that use only CPUs. Ray gets this part in
    addition, so that no replica takes a whole CPU from the tasks that feed it."""
    pools = sum(
        stage.cpus * stage.replicas.max
        for stage in plan.stages
        if stage.replicas and stage.needs_pool and not stage.resources
    )
    return round(pools, 4) % 1


def cpus_needed(plan: Plan) -> float:
    """Return the number of CPUs for the minimum replicas of all pools, a task that feeds them and a
    task that writes."""
    pools = sum(stage.cpus * stage.replicas.min for stage in plan.stages if stage.replicas)
    tasks = [stage.cpus for stage in plan.stages if not stage.replicas]
    return pools + max([TASK_CPUS, *tasks]) + WRITE_CPUS


def _checked_stages(spec: BatchInferenceSpec) -> list[Stage]:
    raise_for_problems(check_columns(spec, spec.read.columns))
    return [with_devices(stage, spec.cluster.profiles) for stage in stages_of(spec.steps)]
