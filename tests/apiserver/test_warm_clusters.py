"""Pools of warm clusters, with the rights that the chart gives."""

from __future__ import annotations

from typing import Any

import pytest

from apiserver.test_permissions import NEEDED, allowed
from batchinference.rendering import CLAIM, POOL_LABEL
from support.documents.minimal import document
from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import SimulatedJob, soon, stamp
from support.servers.api_server import ApiServer, Namespace
from support.servers.dashboard import Dashboard

Object = dict[str, Any]

POOL_RIGHTS = {
    *(("ray.io", "rayclusters", verb) for verb in ("create", "list")),
    ("", "configmaps", "get"),
}


@pytest.fixture
def operator(new_operator: Any, server: ApiServer, namespace: Namespace) -> OperatorProcess:
    """Start an operator with a pool of one cluster in the namespace of the test."""
    pools = [{"namespace": namespace.name, "name": "any"}]
    operator: OperatorProcess = new_operator(watchNamespaces=[namespace.name], pools=pools)
    for manifest in operator.manifests:
        if manifest["metadata"]["name"] == "batch-inference-pool-any":
            server.apply(manifest)
    operator.start()
    return operator


def idle(namespace: Namespace) -> list[Object]:
    """Return the clusters of the pool that no attempt has claimed."""
    found = [
        body for body in namespace.list("RayCluster") if POOL_LABEL in body["metadata"]["labels"]
    ]
    return [body for body in found if CLAIM not in body["metadata"]["annotations"]]


def test_job_takes_a_warm_cluster_with_exactly_the_rights_of_the_chart(
    operator: OperatorProcess, server: ApiServer, namespace: Namespace, dashboard: Dashboard
) -> None:
    (cluster,) = soon("an idle cluster", lambda: idle(namespace))
    name = cluster["metadata"]["name"]
    soon("its Secret", lambda: namespace.find("Secret", f"{name}-token"))
    namespace.patch_status("RayCluster", name, {"state": "ready"})
    namespace.create(document("job"))
    job = SimulatedJob(namespace, "job", dashboard)
    assert job.ray_job["spec"]["clusterSelector"] == {"ray.io/cluster": name}
    claimed = namespace.get("RayCluster", name)["metadata"]
    assert claimed["annotations"][CLAIM] == "job-1"
    assert [owner["kind"] for owner in claimed["ownerReferences"]] == ["BatchInference"]
    soon("a new cluster", lambda: idle(namespace))
    job.start_cluster()
    job.start_driver()
    job.report("succeeded", counts={"read": 10, "written": 10, "failed": 0, "filtered": 0})
    job.write_ray_job_status("Complete", "SUCCEEDED", endTime=stamp(), rayClusterName=name)
    job.status("Succeeded")
    soon("the deletion of the cluster", lambda: namespace.find("RayCluster", name) is None)
    soon("the release", lambda: "clusterSelector" not in job.ray_job["spec"])
    assert operator.stop() == 0
    given = allowed(server, operator.token, namespace.name)
    assert given == NEEDED | POOL_RIGHTS


def test_cluster_of_another_operator_version_is_replaced(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    (cluster,) = soon("an idle cluster", lambda: idle(namespace))
    old = {"metadata": {"annotations": {"batchinference.dev/fingerprint": "of an older version"}}}
    namespace.patch("RayCluster", cluster["metadata"]["name"], old)

    def is_replaced() -> bool:
        names = [body["metadata"]["name"] for body in idle(namespace)]
        return bool(names) and cluster["metadata"]["name"] not in names

    soon("another cluster", is_replaced)
