"""Raises the memory of groups of pods that ran out of memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from batchinference.plan import CPU_GROUP, WorkerGroup, plan_for_cluster
from batchinference.plan.groups import HEAD_GROUP
from batchinference.rendering.pods import head_size
from batchinference.spec.cluster import Cluster
from batchinference.spec.job import BatchInference
from batchinference.spec.quantities import memory_bytes, memory_quantity
from batchinference.spec.resources import Resources
from batchinference.spec.steps import Step


def with_memory(job: BatchInference, minimum: Mapping[str, str]) -> BatchInference:
    """Return the job with at least about this memory per pod. `minimum` has the memory by group
    name; unknown groups are ignored. Raises SpecError if the job cannot be planned. The memory of a
    group may be a few Mi lower, to give its replicas whole Mi. It is also lowered if its pods would
    be equal to those of another group, because the planner would merge both groups."""
    if not minimum:
        return job
    plan, cluster = plan_for_cluster(job.spec), job.spec.cluster
    planned = {HEAD_GROUP: head_size(cluster)[1], **{one.name: one.memory for one in plan.groups}}
    wanted = {
        group: memory
        for group, memory in minimum.items()
        if group in planned and memory_bytes(memory) > memory_bytes(planned[group])
    }
    raised = _distinct(plan.groups, wanted)
    pools = {
        stage.name: _of_replica(raised[group], stage.per_pod)
        for stage in plan.stages
        if (group := plan.group_of(stage)) != CPU_GROUP and group in raised
    }
    return job.with_spec(
        cluster=_cluster(cluster, raised),
        steps=[_step(step, pools.get(step.name)) for step in job.spec.steps],
    )


def without_more_memory(job: BatchInference) -> Iterator[str]:
    """Yield a note for each worker group whose pods `retry.outOfMemory` never gives more memory."""
    if (policy := job.spec.retry.out_of_memory) is None:
        return
    for group in plan_for_cluster(job.spec).groups:
        if memory_bytes(group.memory) >= memory_bytes(policy.max_memory):
            yield (
                f"retry.outOfMemory.maxMemory ({policy.max_memory}) is not above the memory of the "
                f"pods of '{group.name}' ({group.memory}): they get no more. Raise maxMemory"
            )


def _distinct(groups: Sequence[WorkerGroup], raised: Mapping[str, str]) -> dict[str, str]:
    """Return the memory of the raised groups, lowered until no two groups have equal pods."""
    pools = [group for group in groups if group.name != CPU_GROUP]
    memory, shapes = dict(raised), {group.shape for group in pools if group.name not in raised}
    for group in (group for group in pools if group.name in raised):
        step = group.per_pod * 2**20  # so that each replica gets whole Mi
        if group.per_pod > 1:
            memory[group.name] = memory_quantity(memory_bytes(memory[group.name]) // step * step)
        while (shape := replace(group, memory=memory[group.name]).shape) in shapes:
            memory[group.name] = memory_quantity(memory_bytes(memory[group.name]) - step)
        shapes.add(shape)
    return memory


def _of_replica(memory: str, per_pod: int) -> str:
    return memory if per_pod == 1 else memory_quantity(memory_bytes(memory) / per_pod)


def _cluster(cluster: Cluster, memory: Mapping[str, str]) -> Cluster:
    parts = {"head": (HEAD_GROUP, cluster.head), "workers": (CPU_GROUP, cluster.workers)}
    update = {
        name: part.model_copy(update={"memory": memory[group]})
        for name, (group, part) in parts.items()
        if group in memory
    }
    return cluster.model_copy(update=update)


def _step(step: Step, memory: str | None) -> Step:
    if memory is None:
        return step
    resources = (step.resources or Resources()).model_copy(update={"memory": memory})
    return step.model_copy(update={"resources": resources})
