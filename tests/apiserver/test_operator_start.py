"""An operator that cannot work exits with a message, so that Kubernetes restarts it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from apiserver.operators import Operators
from support.cluster.chart import Chart
from support.cluster.deployment import CHART
from support.documents.minimal import document
from support.engines import kubebuilder_assets
from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import SimulatedJob
from support.servers.api_server import ApiServer, new_namespace, running
from support.servers.dashboard import Dashboard

Object = dict[str, Any]
Start = Callable[..., OperatorProcess]


@pytest.fixture
def start(chart: Chart, dashboard: Dashboard, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts an operator for all namespaces of a server."""
    started: list[OperatorProcess] = []

    def start(server: ApiServer, **values: Any) -> OperatorProcess:
        started.append(Operators(server, chart, dashboard, tmp_path)(**values))
        started[-1].start()
        return started[-1]

    yield start
    for operator in started:
        operator.close()
        print(operator.output())


@pytest.fixture
def bare_server(tmp_path: Path) -> Iterator[ApiServer]:
    """Run an API server without any definition."""
    with running(kubebuilder_assets(), tmp_path) as server:
        yield server


@pytest.mark.long("model-check")
def test_operator_exits_without_kuberay(
    bare_server: ApiServer, start: Start, ray_jobs: Object, dashboard: Dashboard
) -> None:
    for file in ("crd.yaml", "schedule-crd.yaml"):
        bare_server.install_crd(yaml.safe_load((CHART / "files" / file).read_text()))
    operator = start(bare_server)
    assert operator.wait() == 1
    assert "rayjobs.ray.io (v1) is missing" in operator.output()
    assert "kuberay.enabled" in operator.output()
    bare_server.install_crd(without_tokens(ray_jobs))
    operator.start()
    namespace = new_namespace(bare_server, "jobs")
    namespace.create(document("job"))
    job = SimulatedJob(namespace, "job", dashboard)
    unknown = 'unknown field "spec.rayClusterSpec.authOptions"'
    job.status("Pending", "Refused", unknown)  # KubeRay is too old
    bare_server.install_crd(ray_jobs)
    job.status("Starting")


def without_tokens(ray_jobs: Object) -> Object:
    """Return the RayJob definition of a KubeRay without authentication for Ray clusters."""
    older = copy.deepcopy(ray_jobs)
    for version in older["spec"]["versions"]:
        spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        spec["rayClusterSpec"]["properties"].pop("authOptions", None)
    return older


def test_operator_exits_without_its_rights(server: ApiServer, kuberay: None, start: Start) -> None:
    operator = start(server, rbac={"create": False})
    assert operator.wait() == 1
    assert "the right to list batchinferences.batchinference.dev" in operator.output()
