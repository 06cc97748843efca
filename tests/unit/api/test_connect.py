"""Commands for a cluster use the kubeconfig, and in a pod without one its ServiceAccount."""

from __future__ import annotations

from pathlib import Path

import pytest
from kubernetes.config import incluster_config, kube_config

from batchinference.api.cluster_error import ClusterError
from batchinference.api.kubernetes import Kubernetes


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory of a machine that is no pod."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / ".kube/config"))
    return tmp_path


@pytest.fixture
def pod(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the ServiceAccount of a pod in the namespace `team`."""
    (directory := home / "pod").mkdir()
    for name, text in {"namespace": "team", "token": "secret", "ca.crt": "certificate"}.items():
        (directory / name).write_text(text)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(directory / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(directory / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return directory


def write_kubeconfig(home: Path) -> None:
    (home / ".kube").mkdir()
    (home / ".kube/config").write_text("""
clusters: [{name: c, cluster: {server: 'https://kubeconfig:6443'}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u, namespace: own}}]
current-context: x""")


def test_pod_without_kubeconfig_uses_its_service_account(pod: Path) -> None:
    cluster = Kubernetes(account=pod)
    assert (cluster.host, cluster.namespace) == ("https://10.0.0.1:443", "team")
    options = {"header_params": {}, "auth_settings": ["BearerToken"]}
    headers = cluster._client.param_serialize("GET", "/", **options)[2]
    assert headers["authorization"] == "bearer secret"
    other = Kubernetes(namespace="other", account=pod)
    assert other.namespace == "other", "an argument overrides the namespace of the pod"


def test_kubeconfig_comes_before_the_service_account(home: Path, pod: Path) -> None:
    write_kubeconfig(home)
    cluster = Kubernetes(account=pod)
    assert (cluster.host, cluster.namespace) == ("https://kubeconfig:6443", "own")


def test_context_needs_a_kubeconfig(pod: Path) -> None:
    with pytest.raises(ClusterError):
        Kubernetes(context="x", account=pod)


def test_pod_without_token_is_an_error(pod: Path) -> None:
    (pod / "token").unlink()
    with pytest.raises(ClusterError):
        Kubernetes(account=pod)


def test_machine_without_kubeconfig_is_an_error(home: Path) -> None:
    with pytest.raises(ClusterError):
        Kubernetes(account=home / "absent")
