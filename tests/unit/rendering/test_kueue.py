"""Rendering refuses jobs that Kueue would refuse."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.plan import plan_for_cluster
from batchinference.rendering.kueue import ELASTIC_ANNOTATION, MAX_GROUPS, check_queue
from batchinference.spec.cluster import Cluster
from plugins.messages import Messages
from support.documents.minimal import Document, python_step
from support.documents.parsed import job
from support.operator.rendered import render


def problems(groups: int, **cluster: Any) -> list[str]:
    steps = [python_step(f"s{n}", resources={"cpu": 1, "memory": f"{n}Gi"})
             for n in range(1, groups)]  # fmt: skip
    spec = job(steps=steps, cluster=cluster).spec
    return [str(problem) for problem in check_queue(spec.cluster, plan_for_cluster(spec).groups)]


def test_kueue_limits_the_number_of_worker_groups(messages: Messages) -> None:
    assert problems(MAX_GROUPS, queueName="gpu") == []
    (problem,) = problems(MAX_GROUPS + 1, queueName="gpu")
    messages.check(problem)
    assert problems(MAX_GROUPS + 1) == []


@pytest.mark.parametrize(
    ("field", "value"), [("queuePriorityClassName", "nightly"), ("topology", {"level": "rack"})]
)
def test_settings_of_kueue_require_a_queue(field: str, value: Any, messages: Messages) -> None:
    (problem,) = problems(1, **{field: value})
    messages.check(problem)


FIXED = {"min": 1, "max": 1}
SHARDED = {"runtime": "vllm", "source": "m", "inputs": {"prompt": "text"}, "output": "answer",
           "parallelism": {"tensor": 8, "pipeline": 2}}  # fmt: skip


def topology_of(step: Document, topology: Document) -> tuple[list[str], list[Document]]:
    """Return the problems of a job in a queue, and the annotations of its worker groups."""
    cluster = {"image": "own:1", "queueName": "gpu", "workers": FIXED, "topology": topology}
    made = job(steps=[step], cluster=cluster)
    groups = plan_for_cluster(made.spec).groups
    result = [str(problem) for problem in check_queue(made.spec.cluster, groups)]
    pods = [] if result else render(made).ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    return result, [group["template"]["metadata"].get("annotations", {}) for group in pods]


ONE_POD = python_step("embed", resources={"gpu": 8}, replicas={"min": 2, "max": 2})
TWO_PODS = {"name": "ask", "model": SHARDED, "resources": {"gpu": 16}, "replicas": FIXED}
POD_SET = "kueue.x-k8s.io/podset"


@pytest.mark.parametrize(
    ("step", "topology", "expected"),
    [
        (ONE_POD, {"level": "rack"}, {f"{POD_SET}-required-topology": "rack"}),
        (TWO_PODS, {"level": "rack", "mode": "Preferred"},
         {f"{POD_SET}-preferred-topology": "rack"}),
        (TWO_PODS, {"level": "rack"},
         {f"{POD_SET}-slice-required-topology": "rack", f"{POD_SET}-slice-size": "2"}),
    ],
)  # fmt: skip
def test_topology_places_the_pods_that_exchange_data(
    step: Document, topology: Document, expected: Document
) -> None:
    assert topology_of(step, topology) == ([], [{}, expected])


def test_topology_of_a_job_that_scales_is_refused(messages: Messages) -> None:
    scales = {**ONE_POD, "replicas": {"min": 1, "max": 2}}
    (result,) = topology_of(scales, {"level": "rack"})[0]
    messages.check(result)


def test_gang_of_another_scheduler_is_a_label_of_the_ray_job() -> None:
    cluster = {"gangScheduling": True, "priorityClassName": "low", "labels": {"team": "a"}}
    own = {**cluster, "labels": {"yunikorn.apache.org/app-id": "own"}}
    assert render(job(cluster=own)).ray_job["metadata"]["labels"].items() >= own["labels"].items()
    made = render(job(cluster=cluster), attempt=2).ray_job
    labels = made["metadata"]["labels"]
    assert (labels["ray.io/gang-scheduling-enabled"], labels["team"]) == ("true", "a")
    assert labels["ray.io/priority-class-name"] == "low", "of Volcano"
    assert labels["yunikorn.apache.org/app-id"] == made["metadata"]["name"]
    assert "suspend" not in made["spec"]


@pytest.mark.parametrize(
    ("step", "queue", "expected"),
    [(ONE_POD, "gpu", (True, True)), (ONE_POD, None, (False, False)),
     ({**ONE_POD, "replicas": {"min": 1, "max": 2}}, "gpu", (False, True))],
)  # fmt: skip
def test_defaults_for_queues_apply_to_jobs_that_can_have_them(
    step: Document, queue: str | None, expected: tuple[bool, bool]
) -> None:
    platform = Cluster.model_validate(
        {"image": "a", "topology": {"level": "rack"}, "queuePriorityClassName": "nightly"}
    )
    cluster = {"queueName": queue, "workers": FIXED}
    result = render(job(steps=[step], cluster=cluster), platform).job.spec.cluster
    assert (result.topology is not None, result.queue_priority_class_name is not None) == expected


def test_kueue_does_not_suspend_a_job_without_a_queue() -> None:
    made = render(job(cluster={"image": "own:1"})).ray_job
    assert "suspend" not in made["spec"]
    elastic = ELASTIC_ANNOTATION in made["metadata"]["annotations"]
    assert not elastic, "Kueue would gate its pods and never ungate them"
