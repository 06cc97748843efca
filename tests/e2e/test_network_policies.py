"""The NetworkPolicies of the chart, by the packets that they let pass and those that they drop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from batchinference.rendering import NAME_LABEL
from e2e.jobs import GATED, counts
from support.cluster.deployment import PIPELINE_IMAGE, RELEASE, helm_test, upgraded
from support.cluster.disruptions import in_node
from support.cluster.kubectl import Kubectl, eventually, run
from support.cluster.object_store import RESTRICTED, ObjectStore, pod
from support.cluster.policy_enforcer import policies_enforced
from support.cluster.state import REPLICAS
from support.cluster.waits import JOB_END, is_ready, outcomes, ready_pods, wait_for_rows

pytestmark = [pytest.mark.long("lifecycle"), pytest.mark.timeout(600)]
Job = dict[str, Any]
Reached = dict[str, set[str]]
"""The targets that each source reaches."""
METADATA = "169.254.169.254"
"""The address at which clouds serve the credentials of a node."""
PROBE = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor

def reaches(target):
    try:
        socket.create_connection(tuple(target), timeout=3).close()
    except ConnectionRefusedError:
        pass  # the packet has arrived, and nothing listens
    except TimeoutError:
        return False
    return True

targets = json.loads(sys.argv[1])
with ThreadPoolExecutor(len(targets)) as threads:
    print(json.dumps(dict(zip(targets, threads.map(reaches, targets.values())))))
"""
HEAD = {"dashboard": 8265, "GCS": 6379, "client": 10001, "metrics": 8080}
WORKER = {"tasks": 10002, "metrics": 8080}
"""Ports of the pods of a job. Of `tasks`, none is known before Ray chooses it."""
OF_JOB = {*(f"head {port}" for port in HEAD), *(f"worker {port}" for port in WORKER)}
OUTSIDE = {"API server", "S3", "tenant", "metadata"}
"""What pods without a policy reach."""
ALLOWED: Reached = {
    "operator": {"head dashboard", "API server"},
    "head": {*OF_JOB, "API server", "S3"},
    "worker": {*OF_JOB, "API server", "S3"},
    "other job": {*OF_JOB, "API server", "S3"},
    "other pod": OUTSIDE,
    "tenant": OUTSIDE,
    "Prometheus": {"head metrics", "worker metrics", "operator metrics", *OUTSIDE},
}
OF_OPERATOR, OF_JOBS = (f"{RELEASE}-batch-inference-operator{of}" for of in ("", "-ray-pods"))
"""The names of the policies."""
WITHOUT: dict[str, Reached] = {
    OF_OPERATOR: {
        **ALLOWED,
        "operator": {"head dashboard", "operator metrics", *OUTSIDE},
        "other pod": {"operator metrics", *OUTSIDE},
        "tenant": {"operator metrics", *OUTSIDE},
    },
    OF_JOBS: {
        **{source: {*OF_JOB, *OUTSIDE} for source in ALLOWED},
        "operator": ALLOWED["operator"],
        "Prometheus": {*OF_JOB, "operator metrics", *OUTSIDE},
    },
}
"""What each source reaches without one of the policies."""
LISTENING = """
import json
sockets = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}")]
listening = [address for _, address, _, state, *_ in sockets if state == "0A"]
print(json.dumps([int(each[-4:], 16) for each in listening if "0100007F" not in each]))
"""
"""Prints the ports on which a pod listens to other pods."""
WITHOUT_TOKEN = """
import http.client, json, sys, urllib.error, urllib.request, grpc

METHODS = (
    "NodeInfoGcsService/GetAllNodeInfo", "NodeManagerService/GetNodeStats",
    "ObjectManagerService/Pull", "CoreWorkerService/GetCoreWorkerStats",
    "ReporterService/GetTraceback", "RayletDriver/ClusterInfo",
)

def call(address):
    channel = grpc.insecure_channel(address)
    for method in METHODS:
        try:
            channel.unary_unary(f"/ray.rpc.{method}")(b"", timeout=9)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNIMPLEMENTED:
                return error.code().name
        else:
            return method

def answer(address):
    try:
        return urllib.request.urlopen(f"http://{address}/api/jobs/", timeout=9).status
    except urllib.error.HTTPError as error:
        return error.code
    except http.client.BadStatusLine:
        return call(address)

print(json.dumps({port: answer(f"{sys.argv[1]}:{port}") for port in json.loads(sys.argv[2])}))
"""
"""Prints how each port answers a request by HTTP or gRPC that has no token."""
PROMETHEUS = {"app": "prometheus"}
LABELS_OF_ALL = {
    NAME_LABEL: "other",
    **PROMETHEUS,
    "app.kubernetes.io/component": "kuberay-operator",
    "app.kubernetes.io/name": "batch-inference-operator",
    "app.kubernetes.io/instance": "batchinference",
    "ray.io/node-type": "head",
}
"""A tenant can give a pod the labels of all the others, but not the name of their namespaces."""


def pods_in(name: str) -> Job:
    """Return the peer of a policy with all pods of a namespace."""
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


@dataclass(frozen=True)
class Network:
    """Pods that connect to others: the namespace and name of each, and the targets."""

    sources: dict[str, tuple[str, str]]
    targets: dict[str, tuple[str, int]]

    def assert_reached(self, expected: Reached) -> None:
        """Check what each source reaches, once the rules have followed the pods and policies."""
        reached: Reached = {}

        def settled() -> bool:
            reached.update(self._reached())
            return reached == expected

        with suppress(AssertionError):  # the comparison names the differences
            eventually("the rules are those of the policies", settled, 45)
        assert reached == expected

    def _reached(self) -> Reached:
        with ThreadPoolExecutor(len(self.sources)) as threads:
            sources = threads.map(self._reached_from, self.sources)
            return dict(zip(self.sources, sources, strict=True))

    def _reached_from(self, source: str) -> set[str]:
        reached = json.loads(self.python(source, PROBE, json.dumps(self.targets)))
        return {target for target, is_reached in reached.items() if is_reached}

    def python(self, source: str, script: str, *arguments: str) -> str:
        """Run a script in a pod, and return its output."""
        namespace, name = self.sources[source]
        return Kubectl(namespace)("exec", name, *("--", "python3", "-c", script, *arguments))


@pytest.fixture(scope="module")
def enforced(installation: ObjectStore) -> Iterator[None]:
    """Enforce NetworkPolicies, and give the nodes the address of the metadata."""
    nodes = [node["metadata"]["name"] for node in Kubectl("default").list("nodes")]
    address = (f"{METADATA}/32", "dev", "lo")
    with policies_enforced(nodes):
        for node in nodes:
            in_node(node, "ip", "address", "replace", *address)
        yield
        for node in nodes:
            in_node(node, "ip", "address", "delete", *address)


@pytest.fixture(scope="module")
def isolated(enforced: None, kubectl: Kubectl, installation: ObjectStore) -> Iterator[None]:
    """Install the operator with both policies, for the jobs in the namespace of `kubectl`."""
    store = pods_in(installation.kubectl.namespace)
    of_jobs = {
        "enabled": True,
        "namespaces": [kubectl.namespace],
        "kuberayFrom": [pods_in(namespace_of_kuberay())],
        "egress": [{"to": [store], "ports": [{"port": 7070}]}, api_server()],
    }
    prometheus = {**store, "podSelector": {"matchLabels": PROMETHEUS}}
    policies = {"enabled": True, "metricsFrom": [prometheus], "rayPods": of_jobs}
    with upgraded({"networkPolicy": policies}):
        yield


def namespace_of_kuberay() -> str:
    selector = "app.kubernetes.io/component=kuberay-operator"
    command = ["kubectl", "get", "pods", "--all-namespaces", "--selector", selector]
    return run([*command, "--output", "jsonpath={.items[0].metadata.namespace}"])


def api_server() -> Job:
    """Return the rule that allows connections to the API server, which is not a pod."""
    (text,) = Kubectl("default").list("endpointslices", "kubernetes.io/service-name=kubernetes")
    addresses = [address for each in text["endpoints"] for address in each["addresses"]]
    return {
        "to": [{"ipBlock": {"cidr": f"{address}/32"}} for address in addresses],
        "ports": [{"port": port["port"]} for port in text["ports"]],
    }


@pytest.fixture(scope="module")
def running(isolated: None, kubectl: Kubectl, slow_job: Callable[..., Job]) -> Job:
    """Return a job that has finished its first rows, and runs until its gate is open."""
    job = slow_job("isolated")
    kubectl.apply(job)
    wait_for_rows(kubectl, job["metadata"]["name"])
    return job


@pytest.fixture(scope="module")
def network(
    running: Job, kubectl: Kubectl, operator: Kubectl, installation: ObjectStore
) -> Iterator[Network]:
    """Yield the pods of the job and of the operator, and those that others have started."""
    tenant, store = Kubectl(f"{kubectl.namespace}-tenant"), installation.kubectl
    run(["kubectl", "create", "namespace", tenant.namespace])
    name = running["metadata"]["name"]
    (head,), (worker,) = (ready_pods(kubectl, name, kind) for kind in ("head", "worker"))
    replica, other_replica = (each for each in operator.list("pods", REPLICAS) if is_ready(each))
    result = {
        "operator": replica,
        "head": head,
        "worker": worker,
        "other job": started(kubectl, "other-job", {NAME_LABEL: "other"}),
        "other pod": started(kubectl, "other-pod", {}),
        "tenant": started(tenant, "tenant", LABELS_OF_ALL),
        "Prometheus": started(store, "prometheus", PROMETHEUS),
    }
    yield Network(
        {
            source: (of["metadata"]["namespace"], of["metadata"]["name"])
            for source, of in result.items()
        },
        {
            **{f"head {port}": (address(head), number) for port, number in HEAD.items()},
            **{f"worker {port}": (address(worker), number) for port, number in WORKER.items()},
            "operator metrics": (address(other_replica), 8080),
            "API server": ("kubernetes.default.svc.cluster.local", 443),
            "S3": (f"s3.{store.namespace}.svc.cluster.local", 7070),
            "tenant": (address(result["tenant"]), 80),
            "metadata": (METADATA, 80),
        },
    )
    run(["kubectl", "delete", "namespace", tenant.namespace, "--wait=false"])


def address(pod: Job) -> str:
    return str(pod["status"]["podIP"])


def started(kubectl: Kubectl, name: str, labels: dict[str, str]) -> Job:
    """Start a pod with these labels that does nothing, and return it."""
    container = {
        "name": name,
        "image": PIPELINE_IMAGE,
        "command": ["sleep", "infinity"],
        "securityContext": RESTRICTED,
    }
    body = pod(name, [container], [])
    body["metadata"]["labels"] = labels
    kubectl.apply(body)
    kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=100s")
    return kubectl.get("pod", name) or {}


def test_packets_arrive_only_where_a_policy_allows_them(network: Network) -> None:
    network.assert_reached(ALLOWED)


@pytest.mark.parametrize("policy", WITHOUT)
def test_each_policy_is_needed(
    network: Network, kubectl: Kubectl, operator: Kubectl, policy: str
) -> None:
    with deleted(operator if policy == OF_OPERATOR else kubectl, policy):
        network.assert_reached(WITHOUT[policy])


@contextmanager
def deleted(kubectl: Kubectl, policy: str) -> Iterator[None]:
    """Delete a policy while the block runs."""
    networkpolicy = kubectl.get("networkpolicy", policy)
    assert networkpolicy
    kubectl("delete", "networkpolicy", policy)
    try:
        yield
    finally:
        kubectl.apply({**networkpolicy, "metadata": {"name": policy}})


@pytest.mark.parametrize(
    ("pod", "open_ports"), [("head", {8080, 44217, 44227}), ("worker", {8080})]
)
def test_ray_requires_its_token(network: Network, pod: str, open_ports: set[int]) -> None:
    """Except for metrics."""
    address, _ = network.targets[f"{pod} metrics"]
    ports = network.python(pod, LISTENING)
    answers = json.loads(network.python("other job", WITHOUT_TOKEN, address, ports))
    refused = {port for port, answer in answers.items() if answer in (401, "UNAUTHENTICATED")}
    assert {int(port) for port in answers.keys() - refused} == open_ports, answers


def test_operator_is_ready_for_helm(network: Network) -> None:
    helm_test()


def test_job_succeeds(
    network: Network, running: Job, kubectl: Kubectl, open_gate: Callable[[Job], None]
) -> None:
    open_gate(running)
    status = kubectl.wait_complete(running["metadata"]["name"], JOB_END)
    assert outcomes(status) == ["Succeeded"]
    assert status["counts"] == counts(GATED)
