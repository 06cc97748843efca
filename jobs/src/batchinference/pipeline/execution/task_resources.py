"""Computes the CPUs, memory, nodes and retries of the tasks and actors of a plan."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray

from batchinference.pipeline.errors import DeviceFailed, JobFailure
from batchinference.plan import Plan, Stage, WorkerGroup
from batchinference.plan.groups import CPU_GROUP, GROUP_LABEL, HEAD_GROUP, is_cpu_stage, pods_needed
from batchinference.plan.stages import TASK_CPUS, WRITE_CPUS, writers
from batchinference.spec.profiles import GPU
from batchinference.spec.quantities import memory_bytes
from batchinference.spec.report import Capacity
from batchinference.spec.steps import Replicas

TASKS_AT_ONCE = 2
"""Submitted tasks for each task that the CPUs can run, so that no CPU waits for the driver."""
SCALE_UP_SECONDS = 10.0
"""Seconds after the start of a job in which tasks do not make the autoscaler add workers."""
_NODE_LABEL = "ray.io/node-id"
"""The label in which Ray stores the ID of a node."""


def selector(plan: Plan, group: str) -> dict[str, str] | None:
    """Return the label selector of the nodes of a worker group, without faulty nodes. None on a
    single machine, which has no groups."""
    if not plan.groups:
        return None
    faulty = {_NODE_LABEL: f"!in({','.join(plan.faulty_nodes)})"} if plan.faulty_nodes else {}
    return {GROUP_LABEL: group, **faulty}


def all_cpus(plan: Plan) -> float:
    """Return the CPUs of Ray. On a cluster, all worker groups count with their maximum size."""
    planned = sum(group.max * group.cpus for group in plan.groups)
    return max(planned, float(ray.cluster_resources().get("CPU", 0)))


def capacity_of(plan: Plan) -> Capacity | None:
    """Return Ray's CPUs and GPUs now, and the maximum of writers; None if Ray does not answer."""
    if not ray.is_initialized():
        return None
    try:
        nodes, cpus = _nodes_by_group(ray.nodes()), all_cpus(plan)
    except Exception:  # noqa: BLE001 - the job does not depend on it
        return None
    return Capacity(
        cpus=_cpus_of_tasks(plan, nodes),
        gpus=sum(resources.get(GPU, 0.0) for _, resources in nodes),
        writers=int(cpus / plan.task_cpus) if plan.single_segment else writers(cpus),
    )


def _cpus_of_tasks(plan: Plan, nodes: list[tuple[str | None, dict[str, float]]]) -> float:
    """Return the CPUs on which tasks run: those of the group `cpu`, or of the machine."""
    for_tasks = (resources for group, resources in nodes if not plan.groups or group == CPU_GROUP)
    cpus = sum(resources.get("CPU", 0.0) for resources in for_tasks)
    if plan.groups or plan.single_segment:
        return cpus
    return float(math.floor(cpus - writers(cpus) * WRITE_CPUS))


def tasks_at_once(plan: Plan, seconds: float) -> int:
    """Return how many tasks of a single segment may be submitted `seconds` after its start. In the
    first seconds, this is the number of tasks that the running workers can run. More tasks would
    make the autoscaler start workers, which a short job does not need."""
    if plan.groups and seconds < SCALE_UP_SECONDS:
        return max(1, int(float(ray.cluster_resources().get("CPU", 0)) / plan.task_cpus))
    return math.ceil(TASKS_AT_ONCE * all_cpus(plan) / plan.task_cpus)


def write_task_arguments(plan: Plan, stages: Sequence[Stage] = ()) -> dict[str, Any]:
    """Return Ray's arguments for write tasks that first run these stages."""
    cpus = max((stage.cpus for stage in stages), default=WRITE_CPUS)
    return _task_arguments(plan, cpus, plan.task_retries)


def read_retries(plan: Plan, *, repeatable: bool) -> int:
    """Return how often read tasks are retried. An input that is not repeatable may return its rows
    in another order, with other IDs."""
    return plan.task_retries if repeatable else 0


def commit_task_arguments(plan: Plan, *, repeatable: bool) -> dict[str, Any]:
    """Return Ray's arguments for tasks that read, compute and commit."""
    arguments = _task_arguments(plan, plan.task_cpus, read_retries(plan, repeatable=repeatable))
    arguments["scheduling_strategy"] = "SPREAD"
    threads = int(plan.task_cpus)
    if threads > 1:
        # Ray starts new processes, because libraries in existing ones may have only one thread
        arguments["runtime_env"] = {"env_vars": {"OMP_NUM_THREADS": str(threads)}}
    return arguments


def _task_arguments(plan: Plan, cpus: float, retries: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {"num_cpus": cpus, "max_retries": retries}
    labels = selector(plan, CPU_GROUP)
    return {**arguments, "label_selector": labels} if labels else arguments


def cpus_of(stage: Stage, plan: Plan) -> float:
    """Return the CPUs of a task or actor. Ray rounds the CPUs of a pod up. Its replicas share the
    rounded CPUs, so that no further replica fits. On a single machine, replicas with a device need
    0 CPUs: the devices limit their number, and their CPUs are often idle. Replicas of growing pools
    also need 0, to leave CPUs for the tasks that feed them."""
    if stage.replicas and not plan.groups and (stage.resources or not stage.needs_pool):
        return 0
    in_own_pod = bool(plan.groups) and not is_cpu_stage(stage)
    if not in_own_pod:
        return stage.cpus
    of_pod = math.ceil(stage.per_pod * stage.cpus)
    return math.floor(of_pod / stage.per_pod * 10_000) / 10_000  # Ray keeps four decimal places


def pool_size(stage: Stage, plan: Plan) -> tuple[int, int]:
    """Return the minimum and maximum number of actors of a pool. A pool that needs only CPUs grows
    until all CPUs are in use."""
    replicas = stage.replicas or Replicas()
    if stage.searches and stage.gpus:  # ReplicaSearch has chosen the replicas of each device
        chosen = replicas_per_device(stage)
        smallest, largest = (chosen * math.ceil(count / stage.per_pod)
                             for count in (replicas.min, replicas.max))  # fmt: skip
        return min(smallest, replicas.min), min(largest, replicas.max)
    if stage.needs_pool:
        return replicas.min, replicas.max
    nodes, cpus = _nodes_for_pools(plan)
    reserved = _reserved_cpus(plan)
    pools = [pool.cpus for pool in plan.stages if pool.replicas and not pool.needs_pool]

    def fit(size: int) -> bool:
        return pods_needed([*reserved, *(pools * size)], cpus) <= nodes

    return 1, next((size for size in range(int(nodes * cpus / sum(pools)), 1, -1) if fit(size)), 1)


def replicas_per_device(stage: Stage) -> int:
    """Return how many replicas share a GPU. Ray rounds parts of a GPU to four decimal places."""
    return round(1 / stage.gpus)


def _nodes_for_pools(plan: Plan) -> tuple[int, float]:
    """Return the number of nodes for pools and the CPUs of each: of the machine, or of nodes in the
    group `cpu`. An autoscaling cluster can start as many nodes as the plan allows."""
    if not plan.groups:
        cpus = all_cpus(plan)
        return 1, cpus if plan.single_segment else cpus - writers(cpus) * WRITE_CPUS
    living = ray.nodes()
    nodes = _nodes_by_group(_used_nodes(plan, living))
    in_group = [resources.get("CPU", 0.0) for group, resources in nodes if group == CPU_GROUP]
    with_cpus = [cpus for cpus in in_group if cpus]
    if HEAD_GROUP in dict(nodes) or not with_cpus:
        groups = Counter(name for name, _ in _nodes_by_group(_faulty_nodes(plan, living)))
        return max(1, plan.groups[0].max - groups[CPU_GROUP]), plan.groups[0].cpus
    return len(with_cpus), min(with_cpus)


def _reserved_cpus(plan: Plan) -> list[float]:
    """Return the CPUs that growing pools must leave free: those of each other actor. On a cluster,
    where every actor occupies CPUs, they also leave the CPUs of a task and a write task."""
    cpus = _task_cpus(plan) if plan.groups else []
    for stage in plan.stages:
        if stage.replicas and stage.needs_pool and (is_cpu_stage(stage) or not plan.groups):
            cpus += [cpus_of(stage, plan)] * stage.replicas.max
    return cpus


def memory_of(stage: Stage, plan: Plan) -> int | None:
    """Return the memory of an actor in bytes, which limits the number of actors on a single
    machine. None if no memory is set, or on a cluster, where pods limit it."""
    return None if plan.groups or stage.memory is None else memory_bytes(stage.memory)


def without_faulty_nodes(plan: Plan, failures: Sequence[JobFailure]) -> Plan:
    """Return the plan without the nodes of DeviceFailed failures. Raises DeviceFailed if the other
    nodes of Ray cannot run the plan."""
    faults = [failure for failure in failures if isinstance(failure, DeviceFailed)]
    if not faults:
        return plan
    faulty = {*plan.faulty_nodes, *(fault.node for fault in faults)}
    healthy = replace(plan, faulty_nodes=tuple(sorted(faulty)))
    if not plan.groups or _groups_without_nodes(healthy, ray.nodes()):
        raise DeviceFailed(f"{faults[0].message}. No other node can run the job")
    return healthy


def without_suspected_nodes(plan: Plan, suspected: Collection[str]) -> Plan:
    """Return the plan without the nodes `suspected` (see `Isolation.suspected_nodes`). The plan is
    unchanged if too few other nodes are alive, because new ones might never start."""
    if not (plan.groups and suspected):
        return plan
    nodes = ray.nodes()
    without = replace(plan, faulty_nodes=tuple(sorted({*plan.faulty_nodes, *suspected})))
    reduced = dict(_nodes_by_group(_faulty_nodes(without, nodes)))
    others = _nodes_by_group(_used_nodes(without, nodes))
    enough = all(
        _suffices(plan, group, [resources for name, resources in others if name == group])
        for group in reduced
    )
    return without if enough and not _groups_without_nodes(without, nodes) else plan


def _suffices(plan: Plan, group: str | None, nodes: Sequence[Mapping[str, float]]) -> bool:
    """Return whether the nodes of a group suffice for the plan. `nodes` has their resources. On
    fewer nodes, the actors of some pools could occupy all nodes. Tasks, or the actors of another
    pool, would then wait forever."""
    if not nodes:
        return False
    pools = [stage for stage in plan.stages if stage.replicas and plan.group_of(stage) == group]
    if group == CPU_GROUP:
        actors = [cpus_of(pool, plan) for pool in pools for _ in range(_first_actors(pool))]
        cpus = min(resources.get("CPU", 0.0) for resources in nodes)
        tasks = [plan.task_cpus] if plan.single_segment else _task_cpus(plan)
        return pods_needed([*tasks, *actors], cpus) <= len(nodes)
    occupied = [math.ceil(_first_actors(pool) / pool.per_pod) * pool.pods for pool in pools]
    by_others = [sum(occupied) - own for own in occupied]
    return all(
        count + pool.pods <= len(nodes) for count, pool in zip(by_others, pools, strict=True)
    )


def _first_actors(pool: Stage) -> int:
    """Return the number of actors with which a pool begins."""
    return pool.replicas.min if pool.replicas and pool.needs_pool else 1


def _task_cpus(plan: Plan) -> list[float]:
    """Return the CPUs of the tasks that run next to actors on a cluster."""
    tasks = [stage.cpus for stage in plan.stages if stage.replicas is None]
    return [max([TASK_CPUS, *tasks]), WRITE_CPUS]


def _used_nodes(plan: Plan, nodes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the nodes that the plan uses."""
    return [node for node in nodes if node.get("NodeID") not in plan.faulty_nodes]


def _faulty_nodes(plan: Plan, nodes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the nodes that the plan does not use."""
    return [node for node in nodes if node.get("NodeID") in plan.faulty_nodes]


def check_nodes(plan: Plan, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Raise JobFailure if the cluster lacks nodes for the plan: Ray would wait forever. `nodes` is
    the result of `ray.nodes()`."""
    if problems := _groups_without_nodes(plan, nodes):
        raise JobFailure("this Ray cluster would never run the job: " + "; ".join(problems))


def _groups_without_nodes(plan: Plan, nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a description of each worker group that has no suitable node and cannot get one. A
    cluster whose head node is in the group `head` is autoscaling. It starts nodes on demand, up to
    the maximum of the group, which includes faulty nodes."""
    faulty = _faulty_nodes(plan, nodes)
    healthy = _nodes_by_group(_used_nodes(plan, nodes))
    if HEAD_GROUP in dict(healthy):
        used_up = Counter(name for name, _ in _nodes_by_group(faulty))
        return [group.name for group in plan.groups if used_up[group.name] >= group.max]
    problems = [
        _describe_missing_node(
            group.name,
            _required_resources(plan, group),
            [resources for name, resources in healthy if name == group.name],
        )
        for group in plan.groups
    ]
    return [problem for problem in problems if problem]


def _nodes_by_group(
    nodes: Sequence[Mapping[str, Any]],
) -> list[tuple[str | None, dict[str, float]]]:
    """Return the group and the resources of each living node."""
    return [
        ((node.get("Labels") or {}).get(GROUP_LABEL), node["Resources"])
        for node in nodes
        if node["Alive"]
    ]


def _required_resources(plan: Plan, group: WorkerGroup) -> dict[str, float]:
    """Return the minimum resources of a node of a group, by Ray's names."""
    if group.name == CPU_GROUP:
        cpus = [stage.cpus for stage in plan.stages if is_cpu_stage(stage)]
        return {"CPU": max([TASK_CPUS, *cpus])}
    need = {"CPU": math.ceil(group.cpus), GPU: group.gpus, **dict(group.custom)}
    if group.accelerator:
        need[f"accelerator_type:{group.accelerator}"] = 1
    return {name: count for name, count in need.items() if count}


def _describe_missing_node(
    group: str, need: dict[str, float], nodes: list[dict[str, float]]
) -> str | None:
    shown = ", ".join(f"{count:g} {name}" for name, count in need.items())
    if not nodes:
        return f"no node has the label {GROUP_LABEL}={group} (ray start --labels), with {shown}"
    if any(all(node.get(name, 0) >= need[name] for name in need) for node in nodes):
        return None
    return f"no node with the label {GROUP_LABEL}={group} has {shown}"
