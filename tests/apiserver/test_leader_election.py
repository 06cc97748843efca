"""Of several replicas and releases, exactly one is active. Another takes over when it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.cluster.kubectl import eventually
from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import SimulatedJob
from support.servers.api_server import ApiServer, Namespace

LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}"
Job = Callable[..., SimulatedJob]


@pytest.fixture
def replicas(new_operator: Any, namespace: Namespace) -> tuple[OperatorProcess, OperatorProcess]:
    """Start two replicas of one release; the first is the leader."""
    leader = new_operator(watchNamespaces=[namespace.name])
    standby = leader.replica("standby")
    new_operator.made.append(standby)
    leader.start()
    eventually("the first leads", lambda: "is the leader" in leader.output(), 60)
    standby.start()
    eventually("the second waits", lambda: "waiting: " in standby.output(), 60)
    return leader, standby


def lease(server: ApiServer, operator: OperatorProcess) -> dict[str, Any]:
    namespace, name = operator.environment["BATCHINFERENCE_OPERATOR_LEASE"].split("/")
    stored: dict[str, Any] = server.get(LEASES.format(namespace, name))
    return stored


def test_ready_standby_takes_over_from_a_leader_that_stops(
    server: ApiServer, replicas: tuple[OperatorProcess, OperatorProcess], job: Job
) -> None:
    leader, standby = replicas
    simulated = job("job")
    simulated.status("Starting")
    assert [standby.answers(path) for path in ("/readyz", "/healthz")] == [200, 200]
    assert "created RayJob" in leader.output()
    assert "created RayJob" not in standby.output()
    assert leader.stop() == 0
    assert "operator/" not in lease(server, leader)["spec"]["holderIdentity"]
    simulated.succeed()
    simulated.status("Succeeded")


def test_standby_takes_over_from_a_leader_that_is_killed(
    replicas: tuple[OperatorProcess, OperatorProcess], job: Job
) -> None:
    leader, standby = replicas
    simulated = job("job")
    simulated.status("Starting")
    leader.kill()
    simulated.succeed()
    simulated.status("Succeeded")
    assert "is the leader" in standby.output()


def test_standby_ends_on_sigterm_and_a_leader_without_lease_exits(
    server: ApiServer, replicas: tuple[OperatorProcess, OperatorProcess]
) -> None:
    leader, standby = replicas
    assert standby.stop() == 0
    metadata = lease(server, leader)["metadata"]
    path = LEASES.format(metadata["namespace"], metadata["name"])
    server.patch(path, {"spec": {"holderIdentity": "system/other/pod"}})
    assert leader.wait(30) == 1
    assert "its holder is 'system/other/pod'" in leader.output()


def test_second_release_of_the_cluster_waits_and_is_not_ready(
    new_operator: Any, namespace: Namespace, job: Job
) -> None:
    lease_namespace = {"leaderElection": {"namespace": namespace.name}}
    first, second = new_operator(**lease_namespace), new_operator(**lease_namespace)
    first.start()
    eventually("the first leads", lambda: "is the leader" in first.output(), 60)
    second.start()
    eventually("the second says so", lambda: "give each its own watch" in second.output(), 60)
    assert second.answers("/readyz") == 503
    assert second.answers("/healthz") == 200
    job("job").status("Starting")
    assert "created RayJob" not in second.output()
