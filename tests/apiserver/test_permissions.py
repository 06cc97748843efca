"""The chart gives the operator exactly the rights that it uses."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from apiserver.overdue_schedule import create_overdue
from batchinference.rendering import ATTEMPT_LABEL, NAME_LABEL, RAY_API_VERSION, RAY_JOB, Owner
from support.cluster.kubectl import eventually
from support.documents.minimal import document
from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import LONG_AGO, SimulatedJob, stamp
from support.servers.api_server import ApiServer, Namespace, new_namespace
from support.servers.dashboard import Dashboard

Object = dict[str, Any]
Right = tuple[str, str, str]
"""API group, resource (with its subresource) and verb."""

GROUP = "batchinference.dev"


def work(namespace: Namespace, dashboard: Dashboard) -> None:
    """Cause every change of a job for which the operator sends requests to the server."""
    for name in ("ended", "deleted"):
        namespace.create(document(name))
    ended = SimulatedJob(namespace, "ended", dashboard)
    ended.succeed()
    ended.status("Succeeded")
    deleted = SimulatedJob(namespace, "deleted", dashboard)
    deleted.status("Starting")
    namespace.delete("RayJob", "deleted-1")
    deleted.status("Failed", "RayJobDeleted")
    namespace.patch("BatchInference", "deleted", {"spec": {"ttl": {"afterFinished": "1s"}}})
    _keep_the_head(namespace, dashboard)
    _suspend(namespace, dashboard)
    _wait_for_a_volume(namespace, dashboard)
    create_overdue(namespace)
    namespace.create(document("queued", cluster={"queueName": "gpu"}))
    SimulatedJob(namespace, "queued", dashboard).status("Pending", "Queued")
    _refuse_as_kueue(namespace)
    namespace.create(document("refused"))
    SimulatedJob(namespace, "refused", dashboard).status("Pending", "Refused")


def _refuse_as_kueue(namespace: Namespace) -> None:
    """Refuse new RayJobs with a message that names Kueue, so that the operator reads its queues."""
    spec = {"hard": {"count/rayjobs.ray.io": "0"}}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "kueue"}}
    namespace.create({**quota, "spec": spec})
    namespace.patch_status("ResourceQuota", "kueue", {**spec, "used": spec["hard"]})


def _keep_the_head(namespace: Namespace, dashboard: Dashboard) -> None:
    """End a job whose cluster is kept, so that the operator removes its workers."""
    namespace.create(document("kept", ttl={"cluster": "1h"}))
    kept = SimulatedJob(namespace, "kept", dashboard)
    kept.status("Starting")
    _create_cluster_of(kept)
    kept.start_cluster()
    kept.create_pod({})
    kept.succeed()
    kept.status("Succeeded")


def _suspend(namespace: Namespace, dashboard: Dashboard) -> None:
    """Suspend a job, so that the operator removes its RayJob and RayCluster."""
    namespace.create(document("paused", suspend=True))
    paused = SimulatedJob(namespace, "paused", dashboard)
    paused.status("Suspended")
    namespace.patch("BatchInference", "paused", {"spec": {"suspend": False}})
    _create_cluster_of(paused)
    paused.start_cluster()
    paused.status("Starting")
    namespace.patch("BatchInference", "paused", {"spec": {"suspend": True}})
    paused.status("Suspended")


def _create_cluster_of(job: SimulatedJob) -> None:
    """Create the job's RayCluster with an owner reference to the RayJob: the operator deletes no
    other RayCluster."""
    uid = job.ray_job["metadata"]["uid"]
    owner = Owner(job.ray_job["metadata"]["name"], uid, RAY_JOB, RAY_API_VERSION).reference()
    metadata = {"name": f"{job.name}-abcde", "ownerReferences": [owner]}
    template = job.ray_job["spec"]["rayClusterSpec"]
    body = {"apiVersion": RAY_API_VERSION, "kind": "RayCluster", "metadata": metadata}
    job.namespace.create({**body, "spec": template})


def _wait_for_a_volume(namespace: Namespace, dashboard: Dashboard) -> None:
    """Create a pod that has a node, and whose Events alone say why its containers do not start."""
    namespace.create(document("waiting"))
    waiting = SimulatedJob(namespace, "waiting", dashboard)
    waiting.status("Starting")
    labels = {NAME_LABEL: "waiting", ATTEMPT_LABEL: "1"}
    container = {"name": "ray", "image": "registry/pipeline:1"}
    pod = {"kind": "Pod", "metadata": {"name": "head", "labels": labels}}
    namespace.create({**pod, "apiVersion": "v1", "spec": {"containers": [container]}})
    state = {"waiting": {"reason": "ContainerCreating"}}
    one = {
        "name": "ray",
        "state": state,
        "ready": False,
        "restartCount": 0,
        "image": "",
        "imageID": "",
    }
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "head.1"},
        "involvedObject": {"kind": "Pod", "name": "head", "namespace": namespace.name},
        "type": "Warning",
        "reason": "FailedMount",
        "message": "secret models not found",
    }
    namespace.create(event)
    # the operator reads Events only when a pod has waited this long
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(LONG_AGO)}
    namespace.patch_status("Pod", "head", {"containerStatuses": [one], "conditions": [placed]})
    waiting.status("Pending", "ContainerConfig", "secret models not found")
    # when this repeats, the operator increments the count of the first Event
    namespace.patch_status("Pod", "head", {"containerStatuses": [{**one, "state": {}}]})
    waiting.status("Starting")
    namespace.patch_status("Pod", "head", {"containerStatuses": [one]})
    waiting.status("Pending", "ContainerConfig")


def allowed(server: ApiServer, token: str, namespace: str) -> set[Right]:
    """Return the bearer's rights in a namespace, without the rights of every service account."""
    nobody = new_namespace(server, "nobody").name
    anyone = server.rules(server.token(nobody, "default"), namespace)
    return rights(server.rules(token, namespace)) - rights(anyone)


def rights(rules: Object) -> set[Right]:
    assert not rules["incomplete"], rules
    return {
        (group, resource, verb)
        for rule in rules["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(operator: OperatorProcess, server: ApiServer, namespace: str) -> set[Right]:
    """Return the rights for which the operator has sent requests, to this namespace or to all
    namespaces, whether or not they were allowed."""
    result = set()
    for event in server.requests_of(operator.user):
        target = event.get("objectRef", {})
        if "resource" in target and target.get("namespace", namespace) == namespace:
            parts = [target["resource"], target.get("subresource")]
            resource = "/".join(part for part in parts if part)
            result.add((target.get("apiGroup", ""), resource, event["verb"]))
    return result


def all_used(operator: OperatorProcess, server: ApiServer, namespace: str) -> set[Right]:
    """Wait until the operator has used all needed rights, at most 60 s. Return the used rights."""
    with contextlib.suppress(AssertionError):
        # poll slowly: each check parses the whole audit log
        eventually(
            "every right is used", lambda: used(operator, server, namespace) >= NEEDED, 60, 1
        )
    return used(operator, server, namespace)


def assert_equal(given: set[Right], asked: set[Right]) -> None:
    superfluous, missing = sorted(given - asked), sorted(asked - given)
    assert not superfluous, f"the roles allow what is never used: {superfluous}"
    assert not missing, f"the roles lack what is used: {missing}"


NEEDED = {
    *((GROUP, "batchinferences", verb) for verb in ("create", "delete", "list", "watch")),
    *((GROUP, "batchinferenceschedules", verb) for verb in ("get", "list", "watch")),
    (GROUP, "batchinferences/status", "patch"),
    (GROUP, "batchinferenceschedules/status", "patch"),
    *(
        ("ray.io", "rayjobs", verb)
        for verb in ("create", "delete", "get", "list", "patch", "watch")
    ),
    *(("ray.io", "rayclusters", verb) for verb in ("delete", "get", "patch")),
    *(("", resource, "create") for resource in ("configmaps", "secrets")),
    ("policy", "poddisruptionbudgets", "create"),
    ("", "events", "list"),
    *(("kueue.x-k8s.io", kind, "list") for kind in ("workloads", "localqueues")),
    *(("events.k8s.io", "events", verb) for verb in ("create", "patch")),
    *(("", "pods", verb) for verb in ("list", "watch")),
}


@pytest.fixture
def cluster_wide_operator(new_operator: Any) -> OperatorProcess:
    """Start an operator that watches all namespaces."""
    operator: OperatorProcess = new_operator()
    operator.start()
    return operator


def test_cluster_wide_operator_uses_exactly_its_rights(
    cluster_wide_operator: OperatorProcess,
    server: ApiServer,
    namespace: Namespace,
    dashboard: Dashboard,
) -> None:
    work(namespace, dashboard)
    asked = all_used(cluster_wide_operator, server, namespace.name)
    assert cluster_wide_operator.stop() == 0
    given = allowed(server, cluster_wide_operator.token, namespace.name)
    assert_equal(given, asked)
    crds = {("apiextensions.k8s.io", "customresourcedefinitions", v) for v in ("list", "watch")}
    assert given == NEEDED | crds


def test_namespaced_operator_uses_exactly_its_rights_and_has_none_elsewhere(
    new_operator: Any, server: ApiServer, namespace: Namespace, dashboard: Dashboard
) -> None:
    second = new_namespace(server, f"{namespace.name}-second")
    operator = new_operator(watchNamespaces=[namespace.name, second.name])
    operator.start()
    work(second, dashboard)
    asked = all_used(operator, server, second.name)
    assert operator.stop() == 0
    given = [allowed(server, operator.token, watched.name) for watched in (namespace, second)]
    assert_equal(given[1], asked)
    assert given == [NEEDED, NEEDED]
    other = new_namespace(server, f"{namespace.name}-other")
    assert allowed(server, operator.token, other.name) == set()
    own = operator.user.split(":")[2]
    assert allowed(server, operator.token, own) == {
        ("coordination.k8s.io", "leases", verb) for verb in ("create", "get", "update")
    }
