"""The stages and pods of a job on a cluster, as `plan` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batchinference.cli.printing import echo, print_table
from batchinference.plan import CPU_GROUP, Plan, Stage, WorkerGroup
from batchinference.plan.stages import TASK_CPUS, WRITE_CPUS
from batchinference.rendering.pods import head_size
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.profiles import GPU
from batchinference.text import counted


@dataclass(frozen=True)
class StageView:
    """A stage: its steps, the CPUs of a process, and its worker group."""

    name: str
    steps: list[str]
    runs_as: str
    """`tasks`, `actors`, or a number of actors such as `1-4 actors`."""
    batch: str
    """Rows of a batch for each step that sets them; `auto` or `block` if none does.

    Empty for reading and writing.
    """
    cpu: float
    devices: str
    group: str


@dataclass(frozen=True)
class GroupView:
    """A group of pods, and the size of each pod. The first group is the head."""

    name: str
    cpu: float
    devices: str
    memory: str
    min: int
    max: int


@dataclass(frozen=True)
class PlanView:
    """A plan. `problems` are the reasons why a cluster would refuse the job."""

    stages: list[StageView]
    groups: list[GroupView]
    problems: list[str]


def view_of(spec: BatchInferenceSpec, plan: Plan, problems: Sequence[object]) -> PlanView:
    """Return what `plan` shows of a job."""
    cpus, memory = head_size(spec.cluster)
    head = GroupView("head", cpus, "", memory, 1, 1)
    stages = [_single_stage(spec, plan)] if plan.single_segment else _stages(spec, plan)
    return PlanView(stages, [head, *map(_group, plan.groups)], list(map(str, problems)))


def show_view(view: PlanView) -> None:
    """Print a plan as tables."""
    print_table([
        ("STAGE", "STEPS", "RUNS AS", "BATCH", "CPU", "DEVICES", "GROUP"),
        *(_row_of_stage(stage) for stage in view.stages),
    ])  # fmt: skip
    echo("")
    print_table([
        ("GROUP", "CPU", "DEVICES", "MEMORY", "MIN", "MAX"),
        *(_row_of_group(group) for group in view.groups),
    ])  # fmt: skip
    for problem in view.problems:
        echo(f"a cluster would refuse this job: {problem}", err=True)


def _row_of_stage(stage: StageView) -> tuple[str, ...]:
    steps, batch, devices = ",".join(stage.steps), stage.batch or "-", stage.devices or "-"
    return stage.name, steps, stage.runs_as, batch, f"{stage.cpu:g}", devices, stage.group


def _row_of_group(group: GroupView) -> tuple[str, ...]:
    cpu, devices = f"{group.cpu:g}", group.devices or "-"
    return group.name, cpu, devices, group.memory, str(group.min), str(group.max)


def _single_stage(spec: BatchInferenceSpec, plan: Plan) -> StageView:
    """Return the stage of a single segment, whose tasks read, run all steps and write."""
    steps = [spec.read.format, *(step.name for step in spec.steps), spec.write.format]
    default = [step.model.default_batch_size if step.model else None for step in spec.steps]
    given = [step.batch_size for step in spec.steps]
    sizes = dict.fromkeys(str(a or b) for a, b in zip(given, default, strict=True) if a or b)
    batch = ",".join(sizes) or "auto"
    return StageView("read-write", steps, "tasks", batch, plan.task_cpus, "", CPU_GROUP)


def _stages(spec: BatchInferenceSpec, plan: Plan) -> list[StageView]:
    read, write = spec.read.format, spec.write.format
    return [
        StageView("read", [read], "tasks", "", TASK_CPUS, "", CPU_GROUP),
        *(_stage(stage, plan.group_of(stage)) for stage in plan.stages),
        StageView("write", [write], "tasks", "", WRITE_CPUS, "", CPU_GROUP),
    ]


def _stage(stage: Stage, group: str) -> StageView:
    steps = [step.name for step in stage.steps]
    batch, devices = _batch(stage), _devices(stage)
    return StageView(stage.name, steps, _runs_as(stage), batch, stage.cpus, devices, group)


def _runs_as(stage: Stage) -> str:
    if stage.replicas is None:
        return "tasks"
    if not stage.needs_pool:
        return "actors"  # as many as the CPUs can run
    least, most = stage.replicas.min, stage.replicas.max
    return f"{'' if least == most else f'{least}-'}{counted(most, 'actor')}"


def _batch(stage: Stage) -> str:
    """Return the rows per batch. A task gets a block, and may split it for its functions."""
    step_sizes = (step.batch_size for step in stage.steps if step.batch_size)
    sizes = dict.fromkeys([stage.batch_size] if stage.batch_size else step_sizes)
    return ",".join(map(str, sizes)) or "block"


def _group(group: WorkerGroup) -> GroupView:
    return GroupView(group.name, group.cpus, _devices(group), group.memory, group.min, group.max)


def _devices(owner: Stage | WorkerGroup) -> str:
    """Return the devices of a replica or a pod, such as `1 GPU (T4)`; empty if it has none."""
    counts = {GPU: owner.gpus, **dict(owner.custom)}
    shown = ", ".join(f"{count:g} {name}" for name, count in counts.items() if count)
    return f"{shown} ({owner.accelerator})" if owner.accelerator else shown
