"""Refuses a job that cannot succeed, before a row is read and before anything is changed."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from typing import Any

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.errors import BadInput, BadOutput, JobFailure, ModelLoad
from batchinference.pipeline.input.base import JobInput
from batchinference.pipeline.runtimes import check_runtime
from batchinference.pipeline.runtimes.model_files import check
from batchinference.pipeline.steps.decode import decoder_of
from batchinference.pipeline.steps.nearest import NearestRows
from batchinference.plan import CPU_GROUP, Plan, WorkerGroup
from batchinference.plan.columns import check_columns
from batchinference.plan.groups import GROUP_LABEL, HEAD_GROUP, is_cpu_stage
from batchinference.plan.stages import TASK_CPUS
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.models import Model
from batchinference.spec.profiles import GPU
from batchinference.spec.steps import Step

Node = Mapping[str, Any]
"""A node as returned by `ray.nodes()`."""


def check_job(spec: BatchInferenceSpec, layout: Layout) -> None:
    """Raise JobFailure if a step cannot run, or error records would be read as output."""
    for step in spec.steps:
        check_step(step)
    check_errors_path(layout)


def check_step(step: Step) -> None:
    """Raise ModelLoad if a step's model or code does not exist, and BadInput if the output that it
    searches does not exist. Nothing is loaded."""
    if step.model is not None:
        _check_model(step.name, step.model)
    elif step.python is not None:
        _check_module(step.name, step.python.callable)
    elif step.decode is not None:
        decoder_of(step.name, step.decode)
    elif step.nearest is not None:
        NearestRows(step.name, step.nearest)


def _check_model(step: str, model: Model) -> None:
    check_runtime(model)
    storage = model.storage_of_source
    for place in model.other_places:
        check(place, storage=storage)
    if model.source_or_none is not None:
        check(model.source_or_none, model.HUB_FILES, model.revision_or_none, storage)
    if model.factory_or_none is not None:
        _check_module(step, model.factory_or_none)


def _check_module(step: str, path: str) -> None:
    module = path.partition(":")[0]
    try:
        found = importlib.util.find_spec(module) is not None
    except ImportError:
        found = False
    if not found:
        raise ModelLoad(
            f"step '{step}': there is no module '{module}'. It must be in the directory of the "
            "job's file, be installed, or be in the image"
        )


def check_input(spec: BatchInferenceSpec, source: JobInput, layout: Layout) -> None:
    """Raise BadOutput if an input file is in an output path, where attempts remove files, and
    BadInput if a step reads a column that does not exist."""
    for place in (layout.output, layout.errors):
        if (inside := source.below(place)) is not None:
            raise BadOutput(
                f"'{place.uri}' is where output goes and holds a file of the input, {inside}: "
                "choose another write.path or errors.path"
            )
    if problems := check_columns(spec, source.columns()):
        raise BadInput("; ".join(map(str, problems)))


def check_errors_path(layout: Layout) -> None:
    """Raise BadOutput if readers of the output would read error records as output. Readers skip
    names that begin with an underscore or a dot."""
    output, errors = layout.output, layout.errors
    place, within = output.path.rstrip("/") + "/", f"{errors.path}/"
    if not (within.startswith(place) and errors.in_store_of(output)):
        return
    if not any(part.startswith(("_", ".")) for part in within.removeprefix(place).split("/")):
        raise BadOutput(
            f"errors.path '{errors.uri}' is below write.path '{output.uri}', so readers would "
            "read error records as output. Choose another errors.path, or remove the field"
        )


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
