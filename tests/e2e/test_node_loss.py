"""A node loses power or a device, or is drained, during a job: each row is written once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.jobs import GATED, LONG, counts
from support.cluster.disruptions import second_node
from support.cluster.kubectl import Kubectl, eventually
from support.cluster.object_store import ObjectStore
from support.cluster.statuses import WatchingKubectl
from support.cluster.waits import CLUSTER_START, outcomes, pods, ready_pods, wait_for_rows

pytestmark = pytest.mark.timeout(900)
HOST = "kubernetes.io/hostname"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
Job = dict[str, Any]


@dataclass(frozen=True)
class Nodes:
    """The two nodes of the cluster, the second of which may lose power."""

    kubectl: WatchingKubectl
    first: str
    second: str

    def only(self, open_: str) -> None:
        """Make new pods go to this node."""
        closed = self.second if open_ == self.first else self.first
        self.kubectl("uncordon", open_)
        self.kubectl("cordon", closed)

    def cut_power(self) -> None:
        """Cut the power of the second node. New pods go to the first one."""
        self.only(self.first)
        second_node("kill")


def names(kubectl: Kubectl) -> set[str]:
    return {text["metadata"]["name"] for text in kubectl.list("nodes")}


@pytest.fixture
def nodes(kubectl: WatchingKubectl, store: ObjectStore) -> Iterator[Nodes]:
    """Start a second node. Everything but the test's jobs runs on the first one."""
    (first,) = names(kubectl)
    second_node("up")
    (second,) = names(kubectl) - {first}
    try:
        yield Nodes(kubectl, first, second)
    finally:
        second_node("kill")
        kubectl("uncordon", first)
        kubectl("delete", "node", second)  # this also deletes its remaining pods


def where(kubectl: Kubectl, name: str, node_type: str) -> dict[str, str]:
    """Return the nodes of a job's ready pods, by pod name."""
    return {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in ready_pods(kubectl, name, node_type)
    }


def wait_until_ready_on(kubectl: Kubectl, name: str, node_type: str, node: str) -> None:
    """Wait until all of the job's pods of this type are on this node."""
    eventually(
        f"each {node_type} of {name} is on {node}",
        lambda: set(where(kubectl, name, node_type).values()) == {node},
        CLUSTER_START,
    )


def longer(job: Job) -> Job:
    """Make the rows take more than a minute."""
    job["spec"]["steps"][0]["batchSize"] = 10
    job["spec"]["retry"] = {"backoff": {"initial": "1s"}}
    return job


@pytest.fixture
def survive(
    nodes: Nodes, store: ObjectStore, open_gate: Callable[[Job], None]
) -> Callable[[Job, str], None]:
    """Return a function that cuts the power during a job, and checks that at most two attempts
    write each row once."""

    def cut(job: Job, name: str) -> None:
        nodes.cut_power()
        open_gate(job)
        status = nodes.kubectl.wait_complete(name, timeout=500)
        rows = nodes.kubectl.history[name].rows
        assert rows == sorted(rows), "progress decreased"
        assert status["counts"] == counts(LONG)
        assert store.verified(job["spec"]["write"]["path"])["result"] == "proven"
        *lost, last = status["attempts"]
        assert last["outcome"] == "Succeeded"
        assert [one["cause"] for one in lost] in ([], ["NodeLost"])

    return cut


@pytest.mark.long("worker-node")
def test_power_cut_of_the_workers_node_costs_at_most_one_attempt(
    kubectl: Kubectl,
    slow_job: Callable[..., Job],
    create: Callable[[Job], str],
    nodes: Nodes,
    survive: Callable[[Job, str], None],
) -> None:
    nodes.only(nodes.first)
    job = longer(slow_job("workers-away", rows=LONG))
    name = create(job)
    rows = wait_for_rows(kubectl, name)
    nodes.only(nodes.second)
    kubectl("delete", "pod", *pods(kubectl, name, "worker"), "--wait=false")
    wait_until_ready_on(kubectl, name, "worker", nodes.second)
    wait_for_rows(kubectl, name, more_than=rows)
    survive(job, name)


@pytest.mark.long("head-node")
def test_power_cut_of_the_heads_node_costs_at_most_one_attempt(
    kubectl: Kubectl,
    slow_job: Callable[..., Job],
    create: Callable[[Job], str],
    nodes: Nodes,
    survive: Callable[[Job, str], None],
) -> None:
    nodes.only(nodes.second)
    job = longer(slow_job("head-away", rows=LONG))
    name = create(job)
    wait_for_rows(kubectl, name)
    assert set(where(kubectl, name, "head").values()) == {nodes.second}
    survive(job, name)


def on_own_pods(job: Job, callable_: str, **arguments: str) -> Job:
    """Make the slow step of a job run in one pod of its own."""
    step = job["spec"]["steps"][0]
    step |= {"resources": {"custom": {"seat": 1}}, "replicas": {"min": 1, "max": 1}}
    step["python"]["callable"] = callable_
    step["python"]["callArgs"] |= arguments
    job["spec"]["cluster"]["profiles"] = {"seat": {}}
    return job


@pytest.mark.long("worker-node")
def test_drain_of_the_workers_node_repeats_at_most_one_batch(
    store: ObjectStore,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
    nodes: Nodes,
    tmp_path: Path,
) -> None:
    kubectl, job = nodes.kubectl, on_own_pods(slow_job("leaving", rows=LONG), "slow:Counted")
    job["spec"]["cluster"] |= {
        "nodeSelector": {HOST: nodes.first},
        "profiles": {"seat": {"nodeSelector": {HOST: nodes.second}}},
    }
    name = create(job)
    wait_for_rows(kubectl, name)
    ours = f"--pod-selector=batchinference.dev/name={name}"
    kubectl("drain", nodes.second, ours, "--force", "--ignore-daemonsets", "--delete-emptydir-data")
    kubectl("uncordon", nodes.second)
    open_gate(job)
    status = kubectl.wait_complete(name, timeout=500)
    assert (outcomes(status), status["counts"]) == (["Succeeded"], counts(LONG))
    gate = job["spec"]["steps"][0]["python"]["callArgs"]["gate"]
    batches = store.download(f"{gate.removeprefix(store.uri(''))}-batches", tmp_path / "batches")
    computed = sum(int(file.name.rsplit("-")[-1]) for file in batches.rglob("*-*"))
    assert LONG <= computed <= LONG + job["spec"]["steps"][0]["batchSize"]


@pytest.mark.long("worker-node")
def test_next_attempt_does_not_use_the_node_of_a_faulty_device(
    kubectl: WatchingKubectl,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
    nodes: Nodes,
) -> None:
    job = on_own_pods(slow_job("faulty"), "slow:Faulty", node=nodes.second)
    term = {"matchExpressions": [{"key": HOST, "operator": "In", "values": [nodes.second]}]}
    near = {PREFERRED: [{"weight": 100, "preference": term}]}
    job["spec"]["cluster"]["affinity"] = {"nodeAffinity": near}
    job["spec"] |= {"retry": {"backoff": {"initial": "1s"}}, "errors": {"maxRows": GATED}}
    name = create(job)
    open_gate(job)
    status = kubectl.wait_complete(name, timeout=500)
    first, last = status["attempts"]
    assert (first["cause"], first["faultyNodes"]) == ("DeviceFailed", [nodes.second])
    assert (last["outcome"], status["counts"]) == ("Succeeded", counts(GATED))
