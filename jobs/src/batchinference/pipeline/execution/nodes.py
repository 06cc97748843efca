"""Checks whether the nodes of an existing Ray cluster can run a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from batchinference.pipeline.errors import JobFailure
from batchinference.plan import CPU_GROUP, Plan, WorkerGroup
from batchinference.plan.groups import GROUP_LABEL, HEAD_GROUP, is_cpu_stage
from batchinference.plan.stages import TASK_CPUS
from batchinference.spec.profiles import GPU

Node = Mapping[str, Any]
"""A node as returned by `ray.nodes()`."""


def check_nodes(plan: Plan, nodes: Sequence[Node]) -> None:
    """Raise JobFailure that names the missing nodes: Ray would wait for them forever.

    A head node in the group `head` belongs to an autoscaling cluster. Such clusters pass, because
    they start nodes on demand.
    """
    groups = [(_group(node), node["Resources"]) for node in nodes if node["Alive"]]
    if HEAD_GROUP in dict(groups):
        return
    missing = [
        _missing(group.name, need, [resources for name, resources in groups if name == group.name])
        for group in plan.groups
        for need in [_need(plan, group)]
    ]
    if problems := [problem for problem in missing if problem]:
        raise JobFailure("this Ray cluster would never run the job: " + "; ".join(problems))


def _group(node: Node) -> str | None:
    return (node.get("Labels") or {}).get(GROUP_LABEL)


def _need(plan: Plan, group: WorkerGroup) -> dict[str, float]:
    """Return the minimum resources of a node of a group, by Ray's names."""
    if group.name == CPU_GROUP:
        cpus = [stage.cpus for stage in plan.stages if is_cpu_stage(stage)]
        return {"CPU": max([TASK_CPUS, *cpus])}
    need = {"CPU": math.ceil(group.cpus), GPU: group.gpus, **dict(group.custom)}
    if group.accelerator:
        need[f"accelerator_type:{group.accelerator}"] = 1
    return {name: count for name, count in need.items() if count}


def _missing(group: str, need: dict[str, float], there: list[dict[str, float]]) -> str | None:
    shown = ", ".join(f"{count:g} {name}" for name, count in need.items())
    if not there:
        return f"no node has the label {GROUP_LABEL}={group} (ray start --labels), with {shown}"
    if any(all(node.get(name, 0) >= need[name] for name in need) for node in there):
        return None
    return f"no node with the label {GROUP_LABEL}={group} has {shown}"
