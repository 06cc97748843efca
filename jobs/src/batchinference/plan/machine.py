"""Fits stages to one machine, by removing requests for resources that the machine lacks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from batchinference.plan.groups import pods_needed
from batchinference.plan.stages import Stage
from batchinference.spec.profiles import GPU
from batchinference.spec.quantities import memory_bytes
from batchinference.spec.resources import Resources
from batchinference.spec.steps import Replicas, Step


def fit_to_machine(
    stages: Sequence[Stage], resources: Mapping[str, float]
) -> tuple[list[Stage], list[str]]:
    """Return the stages for a machine, and a note for each removed request. `resources` has the
    units of the machine's resources by Ray's names. A resource is removed from all stages if there
    is not enough of it for one replica of each pool.

    A step without its missing device may need no pool. Other missing resources, such as licenses,
    stay in the step: its pool limits the replicas."""
    notes: list[str] = []
    # on one machine, the accelerator type is ignored
    result = [_with_min_one_replica(replace(stage, accelerator=None)) for stage in stages]
    for name, wanted in _requested(stages).items():
        available = int(resources.get(name, 0))
        if wanted > available:
            reason = (
                f"the job needs {wanted} {name}(s) at the same time and this machine has "
                f"{available}"
            )
            affected = [stage for stage in stages if name in stage.resources]
            notes += [
                f"step '{one.name}' runs {_fallback(one, name)}: {reason}" for one in affected
            ]
            result = [_without_resource(stage, name) for stage in result]
    return result, notes


def _requested(stages: Sequence[Stage]) -> dict[str, int]:
    """Return the units of each resource that one replica of each pool needs together. A fraction of
    a device must fit on one device."""
    wanted: dict[str, list[float]] = {}
    for stage in stages:
        for name, count in stage.resources.items():
            wanted.setdefault(name, []).append(count)
    return {
        name: int(sum(one for one in counts if one >= 1))
        + pods_needed([one for one in counts if one < 1], 1.0)
        for name, counts in wanted.items()
    }


def _fallback(stage: Stage, name: str) -> str:
    if name not in dict(stage.kinds):
        return f"without {name}"
    model = stage.steps[0].model
    return model.WITHOUT_DEVICE if model else "on the CPU"


def _without_resource(stage: Stage, name: str) -> Stage:
    if name not in stage.resources:
        return stage
    if name in dict(stage.kinds):
        stage = replace(stage, steps=(_without_device(stage.steps[0], name), *stage.steps[1:]))
    if name == GPU:
        return replace(stage, gpus=0)
    return replace(stage, custom=tuple(item for item in stage.custom if item[0] != name))


def _without_device(step: Step, name: str) -> Step:
    """Return the step without its request for GPUs or for a custom resource."""
    requested = step.resources or Resources()
    custom = {other: count for other, count in requested.custom.items() if other != name}
    update = {"gpu": 0} if name == GPU else {"custom": custom}
    return step.model_copy(update={"resources": requested.model_copy(update=update)})


def fit_to_memory(stages: Sequence[Stage], memory: float | None) -> tuple[list[Stage], list[str]]:
    """Return the stages, and a note for each removed request. All memory requests are removed if
    one replica of each pool does not fit into `memory`. If `memory` is None, there are no notes."""
    notes: list[str] = []
    pools = [stage for stage in stages if stage.memory is not None]
    wanted = sum(memory_bytes(stage.memory or "0") for stage in pools)
    if memory is not None and wanted <= memory:
        return list(stages), notes
    if memory is not None:
        reason = (
            f"the job needs {wanted / 2**30:.1f} Gi at the same time and this machine has "
            f"{memory / 2**30:.1f} Gi"
        )
        notes = [
            f"step '{stage.name}' runs without its memory request: {reason}" for stage in pools
        ]
    return [replace(stage, memory=None) for stage in stages], notes


def _with_min_one_replica(stage: Stage) -> Stage:
    """Return the stage with `replicas.min` set to 1."""
    if stage.replicas is None:
        return stage
    return replace(stage, replicas=Replicas.model_construct(min=1, max=stage.replicas.max))
