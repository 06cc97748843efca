"""Prints the stages and pods of a job on a cluster, for the command `plan`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from batchinference.cli.printing import echo, print_table
from batchinference.plan import CPU_GROUP, Plan, Stage, WorkerGroup
from batchinference.plan.stages import TASK_CPUS, WRITE_CPUS
from batchinference.rendering.pods import head_size
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.profiles import GPU
from batchinference.text import counted

STAGES = ("STAGE", "STEPS", "RUNS AS", "BATCH", "CPU", "DEVICES", "GROUP")
GROUPS = ("GROUP", "CPU", "DEVICES", "MEMORY", "MIN", "MAX")
Row = tuple[str, ...]


def show_stages_and_groups(spec: BatchInferenceSpec, plan: Plan) -> None:
    """Print the stages of a plan, and its groups of pods, beginning with the head."""
    stages = [_single_stage(spec, plan)] if plan.single_segment else _stages(spec, plan)
    print_table([STAGES, *stages])
    echo("")
    cpus, memory = head_size(spec.cluster)
    print_table([GROUPS, ("head", f"{cpus:g}", "-", memory, "1", "1"), *map(_group, plan.groups)])


def _single_stage(spec: BatchInferenceSpec, plan: Plan) -> Row:
    """Return the only stage of a plan without pools. Its tasks read, run all steps and write."""
    steps = ",".join([spec.read.format, *(step.name for step in spec.steps), spec.write.format])
    defaults = (step.model.default_batch_size if step.model else None for step in spec.steps)
    sizes = [step.batch_size or size for step, size in zip(spec.steps, defaults, strict=True)]
    batch = _listed(sizes) or "auto"
    return "read-write", steps, "tasks", batch, f"{plan.task_cpus:g}", "-", CPU_GROUP


def _stages(spec: BatchInferenceSpec, plan: Plan) -> Iterator[Row]:
    yield "read", spec.read.format, "tasks", "-", f"{TASK_CPUS:g}", "-", CPU_GROUP
    for stage in plan.stages:
        steps = ",".join(step.name for step in stage.steps)
        # a task gets a block, and its steps may divide it into batches
        sizes = [stage.batch_size] if stage.batch_size else [one.batch_size for one in stage.steps]
        batch, group = _listed(sizes) or "block", plan.group_of(stage)
        yield stage.name, steps, _runs_as(stage), batch, f"{stage.cpus:g}", _devices(stage), group
    yield "write", spec.write.format, "tasks", "-", f"{WRITE_CPUS:g}", "-", CPU_GROUP


def _listed(sizes: Sequence[object]) -> str:
    """Return the distinct batch sizes that are set, in the given order."""
    return ",".join(dict.fromkeys(str(size) for size in sizes if size))


def _runs_as(stage: Stage) -> str:
    """Return `tasks`, `actors`, or a number of actors such as `1-4 actors`."""
    if stage.replicas is None:
        return "tasks"
    if not stage.needs_pool:
        return "actors"  # as many as the CPUs can run
    low, high = stage.replicas.min, stage.replicas.max
    return f"{'' if low == high else f'{low}-'}{counted(high, 'actor')}"


def _group(group: WorkerGroup) -> Row:
    sizes = f"{group.cpus:g}", _devices(group), group.memory
    return group.name, *sizes, str(group.min), str(group.max)


def _devices(owner: Stage | WorkerGroup) -> str:
    """Return the devices of a replica or a pod, such as `1 GPU (T4)`."""
    counts = {GPU: owner.gpus, **dict(owner.custom)}
    shown = ", ".join(f"{count:g} {name}" for name, count in counts.items() if count)
    return f"{shown} ({owner.accelerator})" if owner.accelerator else shown or "-"
