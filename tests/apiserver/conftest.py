"""One API server for the suite, with both CustomResourceDefinitions, and operators."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from apiserver.operators import Operators
from support.cluster.chart import Chart, chart_without_dependencies, kuberay_definition
from support.cluster.deployment import CHART
from support.documents.minimal import document
from support.engines import kubebuilder_assets
from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import SimulatedJob
from support.servers.api_server import ApiServer, Namespace, new_namespace, running
from support.servers.dashboard import Dashboard, served

Object = dict[str, Any]
NewJob = Callable[..., SimulatedJob]


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Run an API server that serves BatchInferences. The server ends with this suite, because an
    idle API server uses CPU time, too."""
    with running(kubebuilder_assets(), tmp_path_factory.mktemp("apiserver")) as server:
        for file in ("crd.yaml", "schedule-crd.yaml"):
            server.install_crd(yaml.safe_load((CHART / "files" / file).read_text()))
        yield server


@pytest.fixture(scope="session")
def ray_jobs() -> Object:
    return kuberay_definition("rayjobs")


@pytest.fixture(scope="package")
def kuberay(server: ApiServer, ray_jobs: Object) -> None:
    """Install KubeRay's definitions. The tests simulate its controller."""
    server.install_crd(ray_jobs)
    server.install_crd(kuberay_definition("rayclusters"))


@pytest.fixture
def namespace(server: ApiServer) -> Namespace:
    return new_namespace(server, f"test-{uuid.uuid4().hex[:8]}")


@pytest.fixture(scope="module")
def module_namespace(server: ApiServer) -> Namespace:
    """Return a namespace for tests that only read or use dry runs."""
    return new_namespace(server, f"test-{uuid.uuid4().hex[:8]}")


@pytest.fixture(scope="session")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Chart:
    return chart_without_dependencies(tmp_path_factory.mktemp("chart"))


@pytest.fixture(scope="session")
def dashboard() -> Iterator[Dashboard]:
    with served() as dashboard:
        yield dashboard


@pytest.fixture
def new_operator(
    server: ApiServer, kuberay: None, chart: Chart, dashboard: Dashboard, tmp_path: Path
) -> Iterator[Operators]:
    operators = Operators(server, chart, dashboard, tmp_path)
    yield operators
    operators.close()


@pytest.fixture
def operator(new_operator: Operators, namespace: Namespace) -> OperatorProcess:
    """Start an operator that watches the namespace of the test."""
    operator = new_operator(watchNamespaces=[namespace.name])
    operator.start()
    return operator


@pytest.fixture
def job(namespace: Namespace, dashboard: Dashboard) -> NewJob:
    """Return a function that creates a BatchInference whose RayJob the test simulates."""

    def create(name: str = "job", **spec: Any) -> SimulatedJob:
        namespace.create(document(name, **spec))
        return SimulatedJob(namespace, name, dashboard)

    return create
