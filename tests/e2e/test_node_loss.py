"""A node loses its power in the middle of a job: every row of the job is still there once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from support.kubectl import Kubectl, eventually
from support.lives import START_OF_A_CLUSTER, outcomes, pod_bodies, rows_are_done
from support.machines import second_node
from support.objectstore import ObjectStore
from support.statuses import recorded

Job = dict[str, Any]
COUNTS = {"read": 2000, "written": 1800, "failed": 0, "skipped": 200}


@dataclass(frozen=True)
class Nodes:
    """Two nodes, of which the second one may lose its power."""

    kubectl: Kubectl
    first: str
    second: str

    def only(self, open_: str) -> None:
        """Have new pods go to this node."""
        closed = self.second if open_ == self.first else self.first
        self.kubectl("uncordon", open_)
        self.kubectl("cordon", closed)

    def cut_power(self) -> None:
        """Of the second one. What comes then goes to the first."""
        self.only(self.first)
        second_node("kill")


def names(kubectl: Kubectl) -> set[str]:
    return {found["metadata"]["name"] for found in kubectl.list("nodes")}


@pytest.fixture
def nodes(kubectl: Kubectl, store: ObjectStore) -> Iterator[Nodes]:
    """A second node for the time of a test. All but the test's jobs is on the first one."""
    (first,) = names(kubectl)
    second_node("up")
    (second,) = names(kubectl) - {first}
    try:
        yield Nodes(kubectl, first, second)
    finally:
        second_node("kill")
        kubectl("uncordon", first)
        kubectl("delete", "node", second)  # what is left of its pods goes with it


def where(kubectl: Kubectl, name: str, node_type: str) -> dict[str, str]:
    """The nodes of a job's pods that are ready and nobody deletes, by name."""
    return {
        found["metadata"]["name"]: found["spec"]["nodeName"]
        for found in pod_bodies(kubectl, name, node_type)
        if "deletionTimestamp" not in found["metadata"] and is_ready(found)
    }


def is_ready(pod: Job) -> bool:
    told = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in told)


def ready_on(kubectl: Kubectl, name: str, node_type: str, node: str) -> None:
    """Wait until the job's pods of this type are on this node and nowhere else."""
    eventually(
        f"each {node_type} of {name} is on {node}",
        lambda: set(where(kubectl, name, node_type).values()) == {node},
        START_OF_A_CLUSTER,
    )


def more_rows_are_done(kubectl: Kubectl, name: str) -> None:
    rows = kubectl.status(name)["progress"]["rows"]
    eventually(
        f"more than {rows} rows of {name} are done",
        lambda: kubectl.status(name)["progress"]["rows"] > rows,
        timeout=120,
    )


def longer(job: Job) -> Job:
    """Its rows take more than a minute."""
    job["spec"]["steps"][0]["batchSize"] = 10
    job["spec"]["retry"] = {"backoff": {"initial": "1s"}}
    return job


def outlives_the_power_cut(nodes: Nodes, store: ObjectStore, job: Job, name: str) -> Job:
    """Cut the power under a job, and see that every row of it is there once in the end. Its status
    comes back."""
    kubectl = nodes.kubectl
    with recorded(kubectl, name) as statuses:
        nodes.cut_power()
        status = kubectl.wait_complete(name, timeout=500)
    assert statuses.rows == sorted(statuses.rows), "progress went back"
    assert status["counts"] == COUNTS
    assert store.verified(job["spec"]["write"]["path"])["result"] == "proven"
    return status


def test_the_node_of_the_workers_loses_its_power(
    kubectl: Kubectl,
    store: ObjectStore,
    slow_job: Callable[[str], Job],
    create: Callable[[Job], str],
    nodes: Nodes,
) -> None:
    nodes.only(nodes.first)
    job = longer(slow_job("workers-away"))
    name = create(job)
    rows_are_done(kubectl, name)
    nodes.only(nodes.second)
    kubectl("delete", "pod", *where(kubectl, name, "worker"), "--wait=false")
    ready_on(kubectl, name, "worker", nodes.second)
    more_rows_are_done(kubectl, name)
    status = outlives_the_power_cut(nodes, store, job, name)
    assert outcomes(status) == ["Succeeded"], "the head is where it was: its attempt goes on"


def test_the_node_of_the_head_loses_its_power(
    kubectl: Kubectl,
    store: ObjectStore,
    slow_job: Callable[[str], Job],
    create: Callable[[Job], str],
    nodes: Nodes,
) -> None:
    nodes.only(nodes.second)
    job = longer(slow_job("head-away"))
    name = create(job)
    rows_are_done(kubectl, name)
    assert set(where(kubectl, name, "head").values()) == {nodes.second}
    *lost, last = outlives_the_power_cut(nodes, store, job, name)["attempts"]
    assert last["outcome"] == "Succeeded"
    assert [one["cause"] for one in lost] in ([], ["NodeLost"]), "KubeRay may begin it again itself"
