"""The plan of a job: stages and worker groups. Pure: a specification in, plain data out.

The operator renders pods from the same plan by which the pipeline runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from batchinference.plan.columns import check_columns, input_columns
from batchinference.plan.groups import WorkerGroup, group_of, groups_of
from batchinference.plan.stages import TASK_CPUS, WRITE_CPUS, Stage, stages_of
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.problems import SpecError
from batchinference.spec.steps import Replicas


@dataclass(frozen=True)
class Plan:
    """Stages between reading and writing, and the worker groups that they run on."""

    stages: tuple[Stage, ...]
    groups: tuple[WorkerGroup, ...]
    notes: tuple[str, ...] = ()
    """What the machine at hand made different from what the file asks."""

    def group_of(self, stage: Stage) -> str:
        return group_of(stage, list(self.groups))


def plan_for_cluster(spec: BatchInferenceSpec) -> Plan:
    """The plan on a cluster. Raises SpecError when the job could not run to its end."""
    stages = _checked_stages(spec)
    return Plan(tuple(stages), tuple(groups_of(stages, spec.cluster.workers)))


def plan_for_machine(spec: BatchInferenceSpec, gpus: int) -> Plan:
    """The plan on one machine that has so many GPUs: no groups, and models on the CPU when the
    GPUs do not suffice for all of them."""
    stages = _checked_stages(spec)
    wanted = sum(stage.gpus for stage in stages)
    if wanted <= gpus:
        return Plan(tuple(_one_at_least(stage) for stage in stages), ())
    notes = tuple(
        f"step '{stage.name}' runs on the CPU: the job needs {wanted} GPU(s) at the same time and "
        f"this machine has {gpus}"
        for stage in stages
        if stage.gpus
    )
    on_cpu = (replace(_one_at_least(stage), gpus=0) for stage in stages)
    return Plan(tuple(on_cpu), (), notes)


def cpus_needed(plan: Plan) -> float:
    """CPUs without which the plan's replicas would starve the tasks that feed them and write."""
    pools = sum(stage.cpus * stage.replicas.min for stage in plan.stages if stage.replicas)
    tasks = [stage.cpus for stage in plan.stages if not stage.replicas]
    return pools + max([TASK_CPUS, *tasks]) + WRITE_CPUS


def _checked_stages(spec: BatchInferenceSpec) -> list[Stage]:
    if problems := check_columns(spec, input_columns(spec)):
        raise SpecError(problems)
    return stages_of(spec.steps)


def _one_at_least(stage: Stage) -> Stage:
    """A machine grows its pools from one replica, whatever a cluster must start with."""
    if stage.replicas is None:
        return stage
    return replace(stage, replicas=Replicas.model_construct(min=1, max=stage.replicas.max))
