"""Rendering refuses jobs that Kueue would refuse."""

from __future__ import annotations

from batchinference.plan import plan_for_cluster
from batchinference.rendering import with_platform_defaults
from batchinference.rendering.kueue import ELASTIC_ANNOTATION, MAX_GROUPS, check_queue
from batchinference.spec.cluster import Cluster
from plugins.messages import Messages
from support.documents.minimal import python_step
from support.documents.parsed import job
from support.operator.rendered import render


def problems(groups: int, **cluster: str) -> list[str]:
    steps = [python_step(f"s{n}", resources={"cpu": 1, "memory": f"{n}Gi"})
             for n in range(1, groups)]  # fmt: skip
    spec = job(steps=steps, cluster=cluster).spec
    return [str(problem) for problem in check_queue(spec.cluster, plan_for_cluster(spec).groups)]


def test_kueue_limits_the_number_of_worker_groups(messages: Messages) -> None:
    assert problems(MAX_GROUPS, queueName="gpu") == []
    (found,) = problems(MAX_GROUPS + 1, queueName="gpu")
    messages.check(found)
    assert problems(MAX_GROUPS + 1) == []


def test_kueue_priority_requires_a_queue(messages: Messages) -> None:
    (found,) = problems(1, queuePriorityClassName="nightly")
    messages.check(found)


def test_kueue_queue_may_come_from_the_platform() -> None:
    platform = Cluster(image="own:1", queueName="gpu")
    made = render(
        with_platform_defaults(job(cluster={"queuePriorityClassName": "nightly"}), platform)
    )
    assert made.ray_job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpu"


def test_kueue_does_not_suspend_a_job_without_a_queue() -> None:
    made = render(job(cluster={"image": "own:1"})).ray_job
    assert "suspend" not in made["spec"]
    elastic = ELASTIC_ANNOTATION in made["metadata"]["annotations"]
    assert not elastic, "Kueue would gate its pods and never ungate them"
