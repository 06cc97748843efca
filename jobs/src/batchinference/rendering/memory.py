"""Gives groups of pods more memory than the job requests, after they ran out of it."""

from __future__ import annotations

from collections.abc import Mapping

from batchinference.plan import CPU_GROUP, plan_for_cluster
from batchinference.plan.groups import HEAD_GROUP
from batchinference.rendering.pods import head_size
from batchinference.spec.cluster import Cluster
from batchinference.spec.job import BatchInference
from batchinference.spec.quantities import memory_bytes
from batchinference.spec.resources import Resources
from batchinference.spec.steps import Step


def with_memory(job: BatchInference, least: Mapping[str, str]) -> BatchInference:
    """Return the job with at least this memory in the pods of each group, by the group's name.

    Groups that the job does not have are ignored. Raises SpecError if the job cannot be planned.
    """
    if not least:
        return job
    plan, cluster = plan_for_cluster(job.spec), job.spec.cluster
    own = {HEAD_GROUP: head_size(cluster)[1], **{one.name: one.memory for one in plan.groups}}
    more = {
        group: memory
        for group, memory in least.items()
        if group in own and memory_bytes(memory) > memory_bytes(own[group])
    }
    pools = {
        stage.name: more.get(plan.group_of(stage))
        for stage in plan.stages
        if plan.group_of(stage) != CPU_GROUP
    }
    update = {
        "cluster": _cluster(cluster, more),
        "steps": [_step(step, pools.get(step.name)) for step in job.spec.steps],
    }
    return job.model_copy(update={"spec": job.spec.model_copy(update=update)})


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
