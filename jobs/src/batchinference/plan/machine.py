"""A plan made to fit one machine: what it lacks, the steps do without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from batchinference.plan.stages import Stage
from batchinference.spec.profiles import GPU
from batchinference.spec.quantities import memory_bytes
from batchinference.spec.steps import Replicas


def fitted(
    stages: list[Stage], found: Mapping[str, float], memory: float | None
) -> tuple[list[Stage], list[str]]:
    """The stages as the machine can run them, and a note on each thing that a step does without.

    `found` counts its devices by Ray's names of them; `memory` is what replicas may have, in bytes,
    and None leaves it out of account.
    """
    notes: list[str] = []
    # a machine takes the accelerators that it has
    result = [_one_at_least(replace(stage, accelerator=None)) for stage in stages]
    for name, wanted in _wanted(stages).items():
        there = int(found.get(name, 0))
        if wanted > there:
            lack = f"the job needs {wanted} {name}(s) at the same time and this machine has {there}"
            without = [stage for stage in stages if name in stage.resources]
            notes += [f"step '{one.name}' runs {_how(one, name)}: {lack}" for one in without]
            result = [_without(stage, name) for stage in result]
    return _within(memory, result, notes), notes


def _wanted(stages: list[Stage]) -> dict[str, int]:
    """Of each resource, what one replica of every pool takes together."""
    wanted: dict[str, int] = {}
    for stage in stages:
        for name, count in stage.resources.items():
            wanted[name] = wanted.get(name, 0) + count
    return wanted


def _how(stage: Stage, name: str) -> str:
    if stage.is_llm:
        return "without GPUs, which vLLM needs unless it was built for CPUs"
    return "on the CPU" if name in dict(stage.kinds) else f"without {name}"


def _without(stage: Stage, name: str) -> Stage:
    if name == GPU:
        return replace(stage, gpus=0)
    return replace(stage, custom=tuple(item for item in stage.custom if item[0] != name))


def _within(memory: float | None, stages: list[Stage], notes: list[str]) -> list[Stage]:
    """The stages with their memory counted where one replica of each pool fits into it."""
    pools = [stage for stage in stages if stage.memory is not None]
    wanted = sum(memory_bytes(stage.memory or "0") for stage in pools)
    if memory is not None and wanted <= memory:
        return stages
    if memory is not None:
        lack = (
            f"the job needs {wanted / 2**30:.1f} Gi at the same time and this machine has "
            f"{memory / 2**30:.1f} Gi"
        )
        notes += [f"step '{stage.name}' runs in what memory there is: {lack}" for stage in pools]
    return [replace(stage, memory=None) for stage in stages]


def _one_at_least(stage: Stage) -> Stage:
    """A machine grows its pools from one replica, whatever a cluster must start with."""
    if stage.replicas is None:
        return stage
    return replace(stage, replicas=Replicas.model_construct(min=1, max=stage.replicas.max))
