"""Computes the worker groups: the kinds of pods that the stages of a job run on.

All stages that request only CPUs share the group `cpu`. A pod of any other stage holds one replica,
a part of a replica (`Stage.pods`) or several replicas (`Stage.per_pod`). Such stages share a group
if their pods have the same shape."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from batchinference.plan.stages import TASK_CPUS, WRITE_CPUS, Custom, Stage
from batchinference.spec.cluster import Workers
from batchinference.spec.problems import Problem, SpecError
from batchinference.spec.quantities import memory_bytes, memory_quantity
from batchinference.spec.steps import Replicas
from batchinference.spec.value_fixes import above_max

CPU_GROUP = "cpu"
HEAD_GROUP = "head"
"""The name of the group of the head, and the value of the head's GROUP_LABEL."""
GROUP_LABEL = "batchinference.dev/group"
"""The label of Ray nodes with their worker group, by which tasks and actors select nodes."""
MAX_DEFAULT_CPUS = 8
DEFAULT_WORKERS = 1
"""Default minimum of the group `cpu`. Every job needs a worker, so one starts together with the
head. With `gang`, enough pods start for reading, writing and the minimum replicas."""
DEFAULT_MEMORY = "4Gi"
MAX_GROUP_NAME = 20
"""KubeRay puts the name of the group into pod names, and cuts these to 50 characters."""


@dataclass(frozen=True)
class WorkerGroup:
    """Pods of one shape: the resources of each pod, and the minimum and maximum number of pods."""

    name: str
    cpus: float
    gpus: int
    memory: str
    min: int
    max: int
    custom: Custom = ()
    accelerator: str | None = None
    pods: int = 1
    """Number of pods that form one replica."""
    per_pod: int = 1
    """Maximum number of replicas in one pod."""
    part: float = 1.0
    """The fraction of a GPU of one replica, at most 1; 0 with `replicasPerDevice: auto`."""

    @property
    def shape(self) -> WorkerGroup:
        """The group without its name and numbers of pods. Pools of equal shape share a group. Pools
        with different fractions of a GPU do not share a group. The part of a GPU that one pool
        leaves could be too small for a replica of the other pool."""
        return replace(self, name="", min=0, max=0)


def is_cpu_stage(stage: Stage) -> bool:
    """Return whether a stage runs on the shared group `cpu`."""
    return stage.gpus == 0 and stage.memory is None and not stage.custom


def groups_of(
    stages: list[Stage], workers: Workers, *, single_segment: bool = False, gang: bool = False
) -> list[WorkerGroup]:
    """Return the worker groups for these stages, `cpu` first. Raises SpecError if `workers` do not
    fit the stages. For example, actors must leave CPUs of the group `cpu` to the tasks that feed
    them.

    With `single_segment`, the tasks that read also write, so separate tasks need no CPUs. With
    `gang`, the minimum replicas of all steps start together with the head. Otherwise, the group of
    a pool is empty until its step begins."""
    shapes: dict[WorkerGroup, WorkerGroup] = {}
    for stage in stages:
        if is_cpu_stage(stage) or stage.replicas is None:
            continue
        group = _group(stage, gang=gang)
        known = shapes.get(group.shape)
        shapes[group.shape] = (
            replace(known, min=known.min + group.min, max=known.max + group.max) if known else group
        )
    cpu_group = _cpu_group(stages, workers, single_segment=single_segment, gang=gang)
    return [cpu_group, *_uniquely_named(list(shapes.values()))]


def group_of(stage: Stage, groups: list[WorkerGroup]) -> str:
    """Return the name of the group that a stage runs on."""
    if is_cpu_stage(stage):
        return CPU_GROUP
    shape = _group(stage).shape
    return next(each.name for each in groups if each.name != CPU_GROUP and each.shape == shape)


def _group(stage: Stage, *, gang: bool = False) -> WorkerGroup:
    """Return the worker group of a pool. Without `gang`, the minimum of the group is 0 pods."""
    memory, per_pod = stage.memory or DEFAULT_MEMORY, stage.per_pod
    if per_pod > 1:
        memory = memory_quantity(per_pod * memory_bytes(memory))
    custom = tuple((name, per_pod * count) for name, count in stage.custom)
    replicas = stage.replicas or Replicas()
    minimum, maximum = (math.ceil(n / per_pod) * stage.pods for n in (replicas.min, replicas.max))
    return WorkerGroup(
        stage.name[:MAX_GROUP_NAME].rstrip("-"),
        per_pod * stage.cpus,
        stage.gpus_of_pod,
        memory,
        minimum if gang else 0,
        maximum,
        custom,
        stage.accelerator,
        stage.pods,
        per_pod,
        part=0.0 if stage.searches else min(1.0, stage.gpus or 1.0),
    )


def _uniquely_named(groups: list[WorkerGroup]) -> list[WorkerGroup]:
    """Return the groups with unique names. Two cut names may be equal, and a step may have the name
    of the group `cpu` or of the head."""
    existing = {CPU_GROUP, HEAD_GROUP, "headgroup"}
    result = []
    for group in groups:
        numbered = (f"{group.name[:15]}-{number}" for number in itertools.count(2))
        names = itertools.chain([group.name], numbered)
        name = next(name for name in names if name not in existing)
        existing.add(name)
        result.append(replace(group, name=name))
    return result


def _cpu_group(
    stages: list[Stage], workers: Workers, *, single_segment: bool, gang: bool
) -> WorkerGroup:
    """Return the worker group `cpu`. Raises SpecError if `workers` do not fit the stages."""
    on_cpu = [stage for stage in stages if is_cpu_stage(stage)]
    min_demands = [
        stage.cpus for stage in on_cpu if stage.replicas for _ in range(stage.replicas.min)
    ]
    max_demands = [
        stage.cpus for stage in on_cpu if stage.replicas for _ in range(stage.replicas.max)
    ]
    read_cpus = max([TASK_CPUS, *(stage.cpus for stage in on_cpu if stage.replicas is None)])
    cpus = workers.cpu or _default_cpus([*min_demands, read_cpus, WRITE_CPUS])
    tasks = [read_cpus] if single_segment else [read_cpus, WRITE_CPUS]
    _check_step_cpus(on_cpu, cpus)
    needed = pods_needed([*min_demands, *tasks], cpus)
    minimum = (needed if gang else DEFAULT_WORKERS) if workers.min is None else workers.min
    maximum = workers.max or max(pods_needed([*max_demands, *tasks], cpus) + 1, minimum)
    _check_deadlock(needed, maximum, cpus, sum(min_demands), sum(tasks))
    if minimum > maximum:
        raise SpecError([Problem("spec.cluster.workers", above_max(minimum, maximum))])
    return WorkerGroup(CPU_GROUP, cpus, 0, workers.memory or DEFAULT_MEMORY, minimum, maximum)


def pods_needed(cpus: list[float], size: float) -> int:
    """Return how many pods of `size` CPUs the demands need (first-fit decreasing). No demand may be
    larger than a pod."""
    free: list[float] = []
    for demand in sorted(cpus, reverse=True):
        for index, room in enumerate(free):
            if demand <= room + 1e-9:
                free[index] = room - demand
                break
        else:
            free.append(size - demand)
    return len(free)


def _default_cpus(demands: list[float]) -> float:
    """Return the CPUs of a worker for all demands, which must run at the same time. It is at most
    MAX_DEFAULT_CPUS, or the largest demand."""
    return float(max(min(math.ceil(sum(demands)), MAX_DEFAULT_CPUS), math.ceil(max(demands))))


def _check_step_cpus(stages: list[Stage], cpus: float) -> None:
    for stage in stages:
        if stage.cpus > cpus:
            message = (
                f"step '{stage.name}' needs {stage.cpus:g} CPUs and a worker has {cpus:g}. "
                "Raise cluster.workers.cpu, or lower the step's resources.cpu"
            )
            raise SpecError([Problem("spec.cluster.workers.cpu", message)])
    if cpus < TASK_CPUS:
        needs = f"at least {TASK_CPUS:g} CPU to read and write, and has {cpus:g}"
        message = f"a worker needs {needs}. Set it to {TASK_CPUS:g} or more"
        raise SpecError([Problem("spec.cluster.workers.cpu", message)])


def _check_deadlock(needed: int, limit: int, cpus: float, actors: float, tasks: float) -> None:
    if needed > limit:
        message = (
            f"the job can never start to read: its replicas occupy {actors:g} CPUs, reading and "
            f"writing need {tasks:g}, and {limit} worker(s) of {cpus:g} CPUs cannot hold both. "
            f"Raise cluster.workers.max to {needed} or lower replicas.min"
        )
        raise SpecError([Problem("spec.cluster.workers.max", message)])
