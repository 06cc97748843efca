"""What is seen of a pod besides its trouble: its attempt, its requests, its times, its loss."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.rendering import GPUS_LABEL, Names
from batchinference.spec.causes import Cause
from batchinference_operator.reconcile.beginning import render
from batchinference_operator.reconcile.model import JobView
from batchinference_operator.status.pods import Loss, PodView, loss_of, seconds_of
from support.documents.minimal import model_step
from support.operator.objects import SETTINGS, UID, asking, job_body, placed, pod_body, waiting

NOON = 1772366400.0


def seen(name: str = "job-1-worker", **status: Any) -> PodView:
    return PodView.of(pod_body(name, **status))


def ended(reason: str, at: str | None = None) -> dict[str, Any]:
    state = {"terminated": {"reason": reason, **({"finishedAt": at} if at else {})}}
    return {"name": "ray", "state": state}


# --- whose it is ------------------------------------------------------------------------


def test_pod_labels_name_its_job_and_its_cluster() -> None:
    pod = PodView.of(pod_body("worker-x", job="doggos", attempt=3))
    assert (pod.name, pod.job, pod.cluster) == ("worker-x", "doggos", "doggos-3-cluster")


# --- what it asks for -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("containers", "cpus"),
    [
        ([], 0.0),
        ([{"name": "ray"}], 0.0),
        ([{"resources": {"limits": {"cpu": "2"}}}], 2.0),
        ([{"resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "500m"}}}], 0.5),
        ([{"resources": {"limits": {"amd.com/gpu": 1, "memory": "4Gi"}}}], 0.0),
        ([{"resources": {"limits": {"cpu": "1"}}}, {"resources": {"requests": {"cpu": "50m"}}}],
         1.05),
    ],
    ids=["none", "nothing", "limits", "requests", "other", "two"],
)  # fmt: skip
def test_a_pod_asks_for_the_cpus_that_its_containers_ask_for(
    containers: list[Any], cpus: float
) -> None:
    pod = PodView.of({**pod_body(), "spec": {"containers": containers}})
    assert pod.cpus == pytest.approx(cpus)


@pytest.mark.parametrize("resource", ["amd.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g"])
def test_rendered_pod_has_the_gpus_of_its_group(
    resource: str,
) -> None:
    body = job_body()
    steps = [model_step(resources={"gpu": 2})]
    body["spec"] |= {"steps": steps, "cluster": {"profiles": {"gpu": {"resource": resource}}}}
    *_, ray_job = render(JobView.of(body), Names("job", UID, 1), SETTINGS)
    cluster = ray_job["spec"]["rayClusterSpec"]
    groups = (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    pods = [{**group["template"], "metadata": {"name": "x", **group["template"]["metadata"]}}
            for group in groups]  # fmt: skip
    assert sum(PodView.of(pod).gpus for pod in pods) == 2


def test_who_labels_a_pod_with_no_number_harms_nobody() -> None:
    body = pod_body()
    body["metadata"]["labels"][GPUS_LABEL] = "many"
    assert PodView.of(body).gpus == 0


# --- its times --------------------------------------------------------------------------


def test_pod_holds_resources_from_scheduling_on() -> None:
    pod = seen(**placed("2026-03-01T12:00:00Z"))
    assert (pod.started, pod.ended) == (NOON, None)


def test_a_pod_without_a_node_holds_nothing() -> None:
    assert seen().started is None
    unplaced = {"type": "PodScheduled", "status": "False", "message": "no node has room"}
    assert seen(conditions=[unplaced]).started is None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_ended_pod_holds_nothing_after_its_last_container(phase: str) -> None:
    both = [ended("Error", "2026-03-01T12:00:00Z"), ended("Completed", "2026-03-01T12:05:00Z")]
    assert seen(phase=phase, containerStatuses=both).ended == NOON + 300


def test_an_evicted_pod_may_not_tell_when_it_ended() -> None:
    assert seen(phase="Failed", reason="Evicted").ended == 0.0


def test_times_are_read_in_any_zone() -> None:
    assert seconds_of("2026-03-01T13:00:00+01:00") == seconds_of("2026-03-01T12:00:00Z") == NOON


@pytest.mark.parametrize(
    ("status", "waits"),
    [({}, False), (waiting("ContainerCreating"), True), (waiting("PodInitializing"), True),
     (waiting("ImagePullBackOff"), False)],
    ids=["nothing", "creating", "initializing", "in-trouble"],
)  # fmt: skip
def test_events_are_asked_for_where_the_pod_itself_says_nothing(
    status: dict[str, Any], waits: bool
) -> None:
    assert seen(**status).waiting is waits


def test_nothing_is_asked_of_a_pod_that_is_being_deleted() -> None:
    body = pod_body(**waiting("ContainerCreating"))
    body["metadata"]["deletionTimestamp"] = "2026-03-01T12:30:00Z"
    assert not PodView.of(body).waiting


# --- what befell it ---------------------------------------------------------------------


def lost(**status: Any) -> Loss | None:
    return loss_of(pod_body("job-1-worker", **status))


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("PreemptionByScheduler", Cause.PREEMPTED),
        ("DeletionByTaintManager", Cause.NODE_LOST),
        ("DeletionByPodGC", Cause.NODE_LOST),
        ("EvictionByEvictionAPI", Cause.NODE_LOST),
        ("TerminationByKubelet", Cause.NODE_LOST),
        ("SomethingNew", Cause.NODE_LOST),
    ],
)
def test_a_disruption_is_a_loss_in_its_own_words(reason: str, cause: Cause) -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "words"}
    assert lost(conditions=[target]) == Loss(cause, "pod job-1-worker: words", of_head=False)
    assert lost(conditions=[{**target, "status": "False"}]) is None


def test_a_loss_has_the_time_that_the_pod_tells() -> None:
    noon = "2026-03-01T12:00:00Z"
    target = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": noon}
    killed = {
        "name": "ray",
        "lastState": {"terminated": {"reason": "OOMKilled", "finishedAt": noon}},
    }
    evicted = {"phase": "Failed", "reason": "Evicted", "containerStatuses": [ended("Error", noon)]}
    found = [lost(conditions=[target]), lost(containerStatuses=[killed]), lost(**evicted)]
    assert [loss.at for loss in found if loss is not None] == [NOON, NOON, NOON]


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("Evicted", Cause.NODE_LOST),
        ("NodeLost", Cause.NODE_LOST),
        ("NodeShutdown", Cause.NODE_LOST),
        ("Terminated", Cause.NODE_LOST),
        ("Preempting", Cause.PREEMPTED),
    ],
)
def test_so_is_the_end_of_the_pod_as_a_whole(reason: str, cause: Cause) -> None:
    found = lost(phase="Failed", reason=reason)
    assert found == Loss(cause, f"pod job-1-worker: {reason}", of_head=False)


@pytest.mark.parametrize("state", ["state", "lastState"])
def test_a_container_that_used_more_than_its_memory_is_named(state: str) -> None:
    killed = {"name": "ray", state: {"terminated": {"reason": "OOMKilled"}}}
    found = lost(containerStatuses=[killed])
    assert found is not None
    assert found.cause == Cause.OUT_OF_MEMORY
    assert found.message.startswith("pod job-1-worker: container ray was killed")


def test_an_eviction_from_a_node_short_of_memory_is_for_memory() -> None:
    words = "The node was low on resource: memory. Threshold quantity: 100Mi"
    found = lost(phase="Failed", reason="Evicted", message=words)
    assert found == Loss(Cause.OUT_OF_MEMORY, f"pod job-1-worker: {words}", of_head=False)


@pytest.mark.parametrize(
    "status",
    [{}, placed(), {"containerStatuses": [ended("Completed")]},
     {"containerStatuses": [ended("Error")]}],
    ids=["nothing", "running", "completed", "error"],
)  # fmt: skip
def test_other_ends_are_no_loss_from_without(status: dict[str, Any]) -> None:
    assert lost(**status) is None


def test_the_loss_of_the_head_is_told_apart() -> None:
    found = loss_of(pod_body("job-1-head", phase="Failed", reason="Evicted"))
    assert found is not None
    assert found.of_head


def test_requests_of_a_pod_are_read_from_its_spec() -> None:
    pod = PodView.of({**pod_body(gpus=2), "spec": asking("4")})
    assert (pod.cpus, pod.gpus) == (4.0, 2)
