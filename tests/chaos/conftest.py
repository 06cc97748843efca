"""The product on a real cluster, an S3 server that can be killed, and the input of the jobs."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest

from chaos.faults import Site
from chaos.inputs import write_inputs
from chaos.store import ChaosStore
from support.cluster.deployment import installed, require_cluster
from support.cluster.kubectl import Kubectl, run
from support.cluster.retrying_kubectl import RetryingKubectl
from support.timeouts import scaled


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("chaos")
    group.addoption("--jobs", type=int, default=5, help="The number of jobs.")
    group.addoption("--faults", type=int, default=2, help="The number of faults for each job.")
    group.addoption("--at-once", type=int, default=5, help="The number of jobs at a time.")
    group.addoption("--seed", type=int, default=1, help="The seed of the plans.")
    group.addoption("--write", action="store_true", help="Record docs/contributing/chaos.md.")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rounds = -(-config.getoption("--jobs") // config.getoption("--at-once"))
    for item in items:
        item.add_marker(pytest.mark.timeout(scaled(300 + 400 * rounds)))


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    value: int = request.config.getoption("--seed")
    return value


@pytest.fixture(scope="session")
def operator() -> Iterator[Kubectl]:
    """Install the operator, and yield kubectl in its namespace."""
    require_cluster()
    with installed() as kubectl:
        yield RetryingKubectl(kubectl.namespace)


@pytest.fixture(scope="session")
def namespace(operator: Kubectl) -> Iterator[Kubectl]:
    """Yield kubectl in the namespace of the jobs, which has the restricted Pod Security level."""
    name = f"chaos-{uuid.uuid4().hex[:6]}"
    run(["kubectl", "create", "namespace", name])
    run(["kubectl", "label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted"])
    yield RetryingKubectl(name)
    run(["kubectl", "delete", "namespace", name, "--wait=false"])


@pytest.fixture(scope="session")
def site(
    operator: Kubectl, namespace: Kubectl, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> Site:
    store = ChaosStore(namespace)
    store.start_all(seed)
    directory = tmp_path_factory.mktemp("in")
    write_inputs(directory)
    store.upload(directory, "in")
    return Site(namespace, operator, kuberay(), store)


def kuberay() -> Kubectl:
    """Return kubectl in the namespace of KubeRay's operator."""
    selector = "--selector=app.kubernetes.io/component=kuberay-operator"
    result = run(["kubectl", "get", "pods", "--all-namespaces", selector, "--output", "json"])
    (namespace,) = {body["metadata"]["namespace"] for body in json.loads(result)["items"]}
    return RetryingKubectl(namespace)
