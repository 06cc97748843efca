"""The attempt, resources, times, loss and problem that the operator observes in a pod. A problem is
the reason why a pod does not run, as a cause and a message."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.rendering import DEVICES_LABEL, Names
from batchinference.spec.causes import Cause
from batchinference_operator.reconcile.attempt_objects import create_actions
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.status.pod_problems import (
    Disruption,
    PodProblem,
    disruption_of,
    problem_of,
)
from batchinference_operator.status.pod_view import PodView
from batchinference_operator.status.timestamps import unix_seconds
from support.documents.minimal import model_step
from support.operator.objects import CONFIG, UID, asking, job_body, placed, pod_body, waiting
from support.operator.virtual_time import BEGINNING

NOON = 1772366400.0


def seen(name: str = "job-1-worker", **status: Any) -> PodView:
    return PodView.of(pod_body(name, **status))


def ended(reason: str, at: str | None = None) -> dict[str, Any]:
    """Return the status of a terminated container."""
    state = {"terminated": {"reason": reason, **({"finishedAt": at} if at else {})}}
    return {"name": "ray", "state": state}


TWO_ENDED = [ended("Error", "2026-03-01T12:00:00Z"), ended("Completed", "2026-03-01T12:05:00Z")]


def test_pod_has_its_cluster_and_resources() -> None:
    pod = PodView.of({**pod_body("worker-x", job="doggos", attempt=3, gpus=2), "spec": asking("4")})
    assert (pod.name, pod.cluster) == ("worker-x", "doggos-3-cluster")
    assert (pod.cpus, pod.devices) == (4.0, 2)


@pytest.mark.parametrize(
    ("containers", "cpus"),
    [
        ([], 0.0),
        ([{"name": "ray"}], 0.0),
        ([{"resources": {"limits": {"cpu": "2"}}}], 2.0),
        ([{"resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "500m"}}}], 0.5),
        ([{"resources": {"limits": {"amd.com/devices": 1, "memory": "4Gi"}}}], 0.0),
        ([{"resources": {"limits": {"cpu": "1"}}}, {"resources": {"requests": {"cpu": "50m"}}}],
         1.05),
    ],
    ids=["no-containers", "no-resources", "limits", "requests", "other", "two"],
)  # fmt: skip
def test_pod_cpus_are_the_sum_of_its_containers(containers: list[Any], cpus: float) -> None:
    pod = PodView.of({**pod_body(), "spec": {"containers": containers}})
    assert pod.cpus == pytest.approx(cpus)


def test_pod_cpus_include_native_sidecars() -> None:
    """Sidecars are init containers that never end: their CPUs and the containers' are added."""
    one = {"resources": {"requests": {"cpu": "1k"}}}
    sidecar = {"restartPolicy": "Always", "resources": {"requests": {"cpu": "250m"}}}
    spec = {"containers": [one], "initContainers": [{**one, "name": "wait"}, sidecar]}
    assert PodView.of({**pod_body(), "spec": spec}).cpus == pytest.approx(1000.25)


@pytest.mark.parametrize("resource", ["amd.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g"])
def test_rendered_pod_has_the_gpus_of_its_group(resource: str) -> None:
    body = job_body()
    steps = [model_step(resources={"gpu": 2})]
    body["spec"] |= {"steps": steps, "cluster": {"profiles": {"gpu": {"resource": resource}}}}
    *_, ray_job = create_actions(JobView.of(body), Names("job", UID, 1), CONFIG, BEGINNING).create
    cluster = ray_job["spec"]["rayClusterSpec"]
    groups = (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    pods = [{**group["template"], "metadata": {"name": "x", **group["template"]["metadata"]}}
            for group in groups]  # fmt: skip
    assert sum(PodView.of(pod).devices for pod in pods) == 2


def test_gpu_label_without_a_number_is_ignored() -> None:
    body = pod_body()
    body["metadata"]["labels"][DEVICES_LABEL] = "many"
    assert PodView.of(body).devices == 0


UNPLACED = {"type": "PodScheduled", "status": "False", "message": "no node has room"}


@pytest.mark.parametrize(
    ("status", "started", "ended"),
    [
        ({}, None, None),
        ({"conditions": [UNPLACED]}, None, None),
        (placed("2026-03-01T12:00:00Z"), NOON, None),
        ({"phase": "Succeeded", "containerStatuses": TWO_ENDED}, None, NOON + 300),
        ({"phase": "Failed", "containerStatuses": TWO_ENDED}, None, NOON + 300),
        ({"phase": "Failed", "reason": "Evicted"}, None, 0.0),
    ],
    ids=["new", "unschedulable", "scheduled", "succeeded", "failed", "evicted"],
)
def test_pod_holds_resources_from_scheduling_to_its_last_container(
    status: dict[str, Any], started: float | None, ended: float | None
) -> None:
    pod = seen(**status)
    assert (pod.scheduled_at, pod.ended_at) == (started, ended)


def test_times_are_read_in_any_time_zone() -> None:
    assert unix_seconds("2026-03-01T13:00:00+01:00") == unix_seconds("2026-03-01T12:00:00Z") == NOON


@pytest.mark.parametrize(
    ("status", "waits"),
    [({}, False), (waiting("ContainerCreating"), True), (waiting("PodInitializing"), True),
     (waiting("ImagePullBackOff"), False)],
    ids=["empty", "creating", "initializing", "in-trouble"],
)  # fmt: skip
def test_pod_that_is_being_created_is_waiting(status: dict[str, Any], waits: bool) -> None:
    body = pod_body(**status)
    assert PodView.of(body).waiting is waits
    body["metadata"]["deletionTimestamp"] = "2026-03-01T12:30:00Z"
    assert not PodView.of(body).waiting, "it is being deleted"


def lost(**status: Any) -> Disruption | None:
    return disruption_of(pod_body("job-1-worker", **status))


def disruption(cause: Cause, message: str) -> Disruption:
    return Disruption(cause, f"pod job-1-worker: {message}", of_head=False, pod="job-1-worker")


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
def test_disruption_target_is_a_loss(reason: str, cause: Cause) -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "drained"}
    assert lost(conditions=[target]) == disruption(cause, "drained")
    assert lost(conditions=[{**target, "status": "False"}]) is None


def test_loss_has_the_time_in_the_pod_status() -> None:
    noon = "2026-03-01T12:00:00Z"
    target = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": noon}
    killed = {"name": "ray", "lastState": ended("OOMKilled", noon)["state"]}
    evicted = {"phase": "Failed", "reason": "Evicted", "containerStatuses": [ended("Error", noon)]}
    losts = [lost(conditions=[target]), lost(containerStatuses=[killed]), lost(**evicted)]
    assert [each and each.at for each in losts] == [NOON, NOON, NOON]


def test_loss_has_the_group_of_the_pod() -> None:
    """KubeRay gives the head pod a group label as well."""
    for name, label, group in (("job-1-worker", "cpu", "cpu"), ("job-1-head", "headgroup", "head")):
        body = pod_body(name, phase="Failed", reason="Evicted")
        body["metadata"]["labels"]["ray.io/group"] = label
        loss = PodView.of(body).disruption
        assert loss is not None
        assert loss.group == group


OUT_OF_MEMORY = (
    "The node was low on resource: memory. Threshold quantity: 100Mi",
    'Usage of EmptyDir volume "shared-mem" exceeds the limit "1Gi".',
)
OUT_OF_DISK = (
    "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 9Mi.",
    "The node had condition: [DiskPressure].",
    'Container ray exceeded its local ephemeral storage limit "1Gi".',
    "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.",
    'Usage of EmptyDir volume "scratch" exceeds the limit "1Gi".',
)
"""Messages of the kubelet."""


@pytest.mark.parametrize(
    ("reason", "message", "cause"),
    [
        ("Evicted", None, Cause.NODE_LOST),
        ("NodeLost", None, Cause.NODE_LOST),
        ("NodeShutdown", None, Cause.NODE_LOST),
        ("Terminated", None, Cause.NODE_LOST),
        ("Preempting", None, Cause.PREEMPTED),
        *(("Evicted", message, Cause.OUT_OF_MEMORY) for message in OUT_OF_MEMORY),
        *(("Evicted", message, Cause.OUT_OF_DISK) for message in OUT_OF_DISK),
    ],
)
def test_failed_pod_is_a_loss(reason: str, message: str | None, cause: Cause) -> None:
    status = {"phase": "Failed", "reason": reason, **({"message": message} if message else {})}
    assert lost(**status) == disruption(cause, message or reason)
    of_head = disruption_of(pod_body("job-1-head", **status))
    assert of_head is not None
    assert of_head.of_head


@pytest.mark.parametrize("state", ["state", "lastState"])
def test_loss_names_the_container_killed_for_memory(state: str) -> None:
    result = lost(containerStatuses=[{"name": "ray", state: ended("OOMKilled")["state"]}])
    assert result is not None
    assert result.cause == Cause.OUT_OF_MEMORY
    assert result.message.startswith("pod job-1-worker: container ray was killed")


@pytest.mark.parametrize(
    "status",
    [{}, placed(), {"containerStatuses": [ended("Completed")]},
     {"containerStatuses": [ended("Error")]}],
    ids=["empty", "running", "completed", "error"],
)  # fmt: skip
def test_other_pod_states_are_not_losses(status: dict[str, Any]) -> None:
    assert lost(**status) is None


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
}


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("ErrImagePull", Cause.IMAGE_PULL),
        ("ImagePullBackOff", Cause.IMAGE_PULL),
        ("InvalidImageName", Cause.IMAGE_PULL),
        ("ErrImageNeverPull", Cause.IMAGE_PULL),
        ("CreateContainerConfigError", Cause.CONTAINER_CONFIG),
        ("CreateContainerError", Cause.CONTAINER_CONFIG),
        ("RunContainerError", Cause.CONTAINER_CONFIG),
        ("CrashLoopBackOff", Cause.CRASH_LOOP),
    ],
)
def test_container_that_waits_with_a_permanent_error_is_a_problem(
    reason: str, cause: Cause
) -> None:
    pod = pod_body(**waiting(reason, "boom"))
    assert problem_of(pod) == PodProblem(cause, "boom")
    assert problem_of(pod_body(**waiting(reason))) == PodProblem(cause, reason)


@pytest.mark.parametrize(
    ("back_off", "error"),
    [
        (
            'Back-off pulling image "a:1": ErrImagePull: rpc error: not found',
            "rpc error: not found",
        ),
        ('Back-off pulling image "a:1": rpc error: not found', "rpc error: not found"),
        ('Back-off pulling image "a:1"', 'Back-off pulling image "a:1"'),
    ],
)
def test_message_about_an_image_is_the_same_during_the_back_off(back_off: str, error: str) -> None:
    pod = pod_body(**waiting("ImagePullBackOff", back_off))
    assert problem_of(pod) == PodProblem(Cause.IMAGE_PULL, error)


KILLED = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}


def container(state: Any, **fields: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "ray", "state": state, **fields}]}


@pytest.mark.parametrize(
    "status",
    [
        None,
        {},
        waiting("ContainerCreating"),
        waiting("PodInitializing"),
        waiting("SomethingNew"),
        {"conditions": [{"type": "PodScheduled", "status": "True"}]},
        container({}),
        container(None),
        container({"running": {"startedAt": "2026-03-01T12:00:00Z"}}),
        container({"terminated": {"reason": "Completed", "exitCode": 0}}),
        container({"terminated": {"reason": "Error", "exitCode": 1}}),
        container({"running": {}}, lastState=KILLED),
    ],
    ids=["null", "empty", "creating", "initializing", "unknown-reason", "scheduled",
         "unknown-state", "null-state", "running", "completed", "error", "restarted"],
)  # fmt: skip
def test_other_states_are_not_problems(status: Any) -> None:
    assert problem_of({**pod_body(), "status": status}) is None


def test_unschedulable_pod_has_the_message_of_the_scheduler() -> None:
    problem = problem_of(pod_body(conditions=[{"type": "Ready", "status": "False"}, UNSCHEDULABLE]))
    assert problem == PodProblem(Cause.UNSCHEDULABLE, UNSCHEDULABLE["message"])


@pytest.mark.parametrize(
    "status",
    [container(KILLED), container({"waiting": {"reason": "CrashLoopBackOff"}}, lastState=KILLED)],
    ids=["once", "in-backoff"],
)
def test_container_killed_for_memory_is_a_problem(status: dict[str, Any]) -> None:
    message = "container ray was killed: it used more memory than its pod's limit"
    assert problem_of(pod_body(**status)) == PodProblem(Cause.OUT_OF_MEMORY, message)


def test_first_container_with_a_problem_is_named() -> None:
    healthy = container({"running": {}})["containerStatuses"]
    failing, sidecar = (
        waiting(reason, message)["containerStatuses"]
        for reason, message in (("ImagePullBackOff", "first"), ("CrashLoopBackOff", "second"))
    )
    init = pod_body(initContainerStatuses=failing, containerStatuses=sidecar)
    assert problem_of(init) == PodProblem(Cause.IMAGE_PULL, "first")
    later = pod_body(containerStatuses=[*healthy, *sidecar])
    assert problem_of(later) == PodProblem(Cause.CRASH_LOOP, "second")


@pytest.mark.parametrize(
    "status",
    [waiting("ImagePullBackOff"), {"conditions": [UNSCHEDULABLE]}],
    ids=["waiting", "unschedulable"],
)
def test_deleting_pod_is_not_a_problem(status: Any) -> None:
    pod = pod_body(**status)
    pod["metadata"]["deletionTimestamp"] = "2026-03-01T12:30:00Z"
    assert problem_of(pod) is None
