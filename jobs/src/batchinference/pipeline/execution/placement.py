"""Places the GPUs of a replica on several pods of a cluster."""

from __future__ import annotations

from functools import partial
from typing import Any

import ray
from ray.data import Dataset
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from batchinference.pipeline.execution.resources import selector
from batchinference.plan import Plan, Stage

Bundle = dict[str, float]


def placement_arguments(stage: Stage, plan: Plan, dataset: Dataset) -> dict[str, Any]:
    """Return the arguments of `dataset.map_batches` with which each actor gets a placement group
    that has the GPUs of its replica on several pods; none if a replica fits into one pod.

    The actor is in the group, takes the CPUs of its first bundle and no GPU: the library that runs
    the model starts a process for each GPU in the group."""
    if not plan.groups or stage.pods == 1:
        return {}
    bundle = {"CPU": stage.cpus * stage.pods / stage.gpus, "GPU": 1.0}
    kind = {f"accelerator_type:{stage.accelerator}": 0.001} if stage.accelerator else {}
    bundles = [{**bundle, **kind}] * stage.gpus
    group = partial(_create_group, bundles, selector(plan, plan.group_of(stage)))
    _disable_memory_detector(dataset)
    return {"num_gpus": 0, "num_cpus": bundle["CPU"], "ray_remote_args_fn": group}


def _create_group(bundles: list[Bundle], nodes: dict[str, str] | None) -> dict[str, Any]:
    selectors = [nodes] * len(bundles) if nodes else None
    group = ray.util.placement_group(bundles, "PACK", bundle_label_selector=selectors)
    scheduling = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    return {"scheduling_strategy": scheduling}


def _disable_memory_detector(dataset: Dataset) -> None:
    """Disable Ray's high memory detector; `execution.task_notes` records the peak memory.

    The detector repeatedly requests the arguments of actors that it never starts, each time with a
    placement group. This would reserve GPUs that are not used (ray#64012)."""
    config = dataset.context.issue_detectors_config
    config.detectors = [
        detector for detector in config.detectors if detector.__name__ != "HighMemoryIssueDetector"
    ]
