"""The chart as rendered by Helm, and a real API server to install it into."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster.chart import Chart, chart_with_dependencies, chart_without_dependencies
from support.cluster.kubectl import eventually
from support.cluster.release import Release
from support.engines import kubebuilder_assets
from support.servers.api_server import ApiServer, running


@pytest.fixture(scope="session")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Chart:
    """Return the chart without dependencies."""
    return chart_without_dependencies(tmp_path_factory.mktemp("chart"))


@pytest.fixture(scope="session")
def with_kuberay() -> Chart:
    """Return the chart with its dependency, the KubeRay chart."""
    return chart_with_dependencies()


@pytest.fixture(scope="package")
def shared_bare_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Run an API server for `bare_server`. The server ends with this suite, because an idle API
    server uses CPU time, too."""
    with running(kubebuilder_assets(), tmp_path_factory.mktemp("bare")) as server:
        yield server


@pytest.fixture
def bare_server(shared_bare_server: ApiServer) -> Iterator[ApiServer]:
    """Yield an API server without any definition. Delete those that the test installs."""
    yield shared_bare_server
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    shared_bare_server.call("DELETE", definitions)
    eventually("no definitions", lambda: not shared_bare_server.get(definitions)["items"], 30, 0.05)


@pytest.fixture
def release(chart: Chart, bare_server: ApiServer, tmp_path: Path) -> Iterator[Release]:
    """Return a release that is not installed yet. Delete its objects elsewhere afterwards.

    The server has no controllers: objects stay as Helm wrote them, and no pod starts.
    """
    kubeconfig = bare_server.kubeconfig(tmp_path / "kubeconfig")
    yield Release(chart, bare_server, kubeconfig, f"system-{uuid.uuid4().hex[:8]}")
    ours = "app.kubernetes.io/managed-by=Helm"
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    admission = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
    texts = [f"namespaces/{name}" for name in ("default", "kube-public", "kube-system")]
    for path in (
        *(f"{rbac}/{plural}" for plural in ("clusterroles", "clusterrolebindings")),
        *(f"{admission}{plural}" for plural in ("ies", "ybindings")),
        *(f"{rbac}/{one}/{plural}" for one in texts for plural in ("roles", "rolebindings")),
        *(f"/api/v1/{one}/configmaps" for one in texts),
    ):
        bare_server.call("DELETE", path, labelSelector=ours)
