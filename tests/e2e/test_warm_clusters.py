"""Jobs take started clusters from a pool, each cluster for one job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from batchinference.rendering import POOL_LABEL
from e2e.jobs import GATED, counts
from support.cluster.deployment import upgraded
from support.cluster.kubectl import Kubectl, eventually
from support.cluster.pools import idle
from support.cluster.waits import CLUSTER_START, JOB_END, suspend, wait_for_phase, wait_for_rows

pytestmark = pytest.mark.xdist_group("upgrades")
Job = dict[str, Any]


def names(kubectl: Kubectl) -> list[str]:
    return [body["metadata"]["name"] for body in kubectl.list("rayclusters")]


WORKERS = {"cpu": 3, "max": 1}
"""Without a size, the default of workers depends on the steps."""


@pytest.fixture(scope="module")
def pool(kubectl: Kubectl, own_code: Job) -> Iterator[None]:
    """Keep one warm cluster for jobs with the tests' own code."""
    spec = {"cluster": {**own_code, "workers": WORKERS}}
    with upgraded({"pools": [{"namespace": kubectl.namespace, "name": "any", "spec": spec}]}):
        eventually("an idle cluster", lambda: idle(kubectl), CLUSTER_START, 1)
        yield
    eventually("no cluster of a pool", lambda: not kubectl.list("rayclusters", POOL_LABEL), 120, 1)


@pytest.fixture
def fitting_job(slow_job: Callable[..., Job]) -> Callable[[str], Job]:
    """Return a function that creates a job that fits into the clusters of the pool."""

    def make(name: str) -> Job:
        job = slow_job(name)
        job["spec"]["cluster"]["workers"] = WORKERS
        # an actor pool would need its own worker group
        del job["spec"]["steps"][0]["replicas"]
        return job

    return make


def test_job_takes_a_warm_cluster_and_a_new_one_starts(
    pool: None,
    kubectl: Kubectl,
    fitting_job: Callable[[str], Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
) -> None:
    (first,) = idle(kubectl)
    job = fitting_job("warm")
    name = create(job)
    wait_for_rows(kubectl, name)
    (ray_job,) = kubectl.list("rayjobs", f"batchinference.dev/name={name}")
    assert ray_job["spec"]["clusterSelector"] == {"ray.io/cluster": first}
    open_gate(job)
    status = kubectl.wait_complete(name, JOB_END)
    assert status["rayClusterName"] == first
    assert status["counts"] == counts(GATED)
    assert status["cpuSeconds"] > 0
    eventually("the deletion of its cluster", lambda: first not in names(kubectl), 120, 1)
    eventually("a new idle cluster", lambda: idle(kubectl), CLUSTER_START, 1)


def test_suspended_job_deletes_its_warm_cluster(
    pool: None, kubectl: Kubectl, fitting_job: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    job = fitting_job("pausing")
    eventually("an idle cluster", lambda: idle(kubectl), CLUSTER_START, 1)
    (first,) = idle(kubectl)
    name = create(job)
    wait_for_rows(kubectl, name)
    suspend(kubectl, name, True)
    wait_for_phase(kubectl, name, "Suspended")
    assert first not in names(kubectl)
