"""Each value has an effect, and invalid values are refused before an installation."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from batchinference.spec.cluster import Cluster
from support.cluster.chart import Chart, one
from support.cluster.deployment import CHART

Object = dict[str, Any]

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
FREE = {"defaults", "resources", "podSecurityContext", "securityContext", "commonLabels"}
FREE |= {"livenessProbe", "readinessProbe", "affinity", "nodeSelector", "podAnnotations"}
FREE |= {"podLabels", "serviceAccount.annotations", "metrics.service.annotations"}
FREE |= {"metrics.podMonitor.labels"}
"""Values that are objects of Kubernetes or of the user, with arbitrary fields."""

CHANGES: dict[str, Any] = {
    "nameOverride": "marked",
    "fullnameOverride": "marked",
    "commonLabels": {"marked": "yes"},
    "image.repository": "registry.example/marked",
    "image.tag": "marked",
    "image.digest": "sha256:" + "77" * 32,
    "image.pullPolicy": "Always",
    "imagePullSecrets": [{"name": "marked"}],
    "replicas": 3,
    "leaderElection.namespace": "marked",
    "crds.enabled": False,
    "crds.keep": False,
    "watchNamespaces": ["marked"],
    "defaults": {"image": "marked"},
    "clusterDomain": "marked",
    "tokenKey.existingSecret": "marked",
    "rbac.create": False,
    "rbac.aggregate": False,
    "serviceAccount.name": "marked",
    "serviceAccount.annotations": {"marked": "yes"},
    "workers": 77,
    "api.qps": 77.5,
    "api.burst": 77,
    "concurrency.maxRunning": 77,
    "concurrency.maxRunningPerNamespace": 77,
    "logging.format": "plain",
    "logging.level": "WARNING",
    "metrics.service.enabled": False,
    "metrics.service.port": 77,
    "metrics.service.annotations": {"marked": "yes"},
    "metrics.podMonitor.enabled": True,
    "networkPolicy.enabled": True,
    "resources": {"limits": {"memory": "77Mi"}},
    "podAnnotations": {"marked": "yes"},
    "podLabels": {"marked": "yes"},
    "nodeSelector": {"marked": "yes"},
    "tolerations": [{"key": "marked", "operator": "Exists"}],
    "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}},
    "priorityClassName": "marked",
    "podSecurityContext": {"fsGroup": 77},
    "securityContext": {"privileged": False},
    "livenessProbe": {"periodSeconds": 77},
    "readinessProbe": {"periodSeconds": 77},
    "extraEnv": [{"name": "MARKED", "value": "yes"}],
}
TESTED_ELSEWHERE = {
    "metrics.podMonitor.interval": "test_metrics.py",
    "metrics.podMonitor.labels": "test_metrics.py",
    "networkPolicy.metricsFrom": "test_network_policy.py",
    "networkPolicy.apiServerPorts": "test_network_policy.py",
    "kuberay.enabled": "test_kuberay.py",
    "serviceAccount.create": "test_roles.py: it requires a name",
}


def leaves(values: Object, path: str = "") -> Iterator[str]:
    for key, value in values.items():
        inner = f"{path}{key}"
        if isinstance(value, dict) and inner not in FREE:
            yield from leaves(value, f"{inner}.")
        else:
            yield inner


def nested(path: str, value: Any) -> Object:
    for key in reversed(path.split(".")):
        value = {key: value}
    return value  # type: ignore[no-any-return]


def without_key(manifests: list[Object]) -> list[Object]:
    """Replace the token key, which is random if Helm cannot look it up in a cluster."""
    manifests = copy.deepcopy(manifests)
    for manifest in manifests:
        if manifest["kind"] == "Secret":
            manifest["data"]["key"] = "random"
    return manifests


@pytest.mark.parametrize(("path", "value"), CHANGES.items(), ids=CHANGES)
def test_value_changes_the_manifests(chart: Chart, path: str, value: Any) -> None:
    before = without_key(chart.manifests())
    after = without_key(chart.manifests(nested(path, value)))
    assert after != before
    for marker in ("marked", "MARKED", "77"):
        if marker in json.dumps(value):
            assert marker in json.dumps(after)


def test_values_are_all_tested() -> None:
    assert set(leaves(VALUES)) == CHANGES.keys() | TESTED_ELSEWHERE.keys()


def test_values_schema_equals_the_values() -> None:
    def known(schema: Object, path: str = "") -> Iterator[str]:
        for key, child in schema["properties"].items():
            inner = f"{path}{key}"
            if "properties" in child and inner not in FREE:
                yield from known(child, f"{inner}.")
            else:
                yield inner

    of_helm = {"global", "kuberay-operator"}
    assert set(known(SCHEMA)) - of_helm == set(leaves(VALUES))


def test_values_schema_of_defaults_equals_the_cluster_settings() -> None:
    fields = {field.alias for field in Cluster.model_fields.values()}
    assert SCHEMA["properties"]["defaults"]["properties"].keys() == fields


INVALID = [
    ({"bogus": 1}, "bogus"),
    ({"image": {"name": "x"}}, "/image"),
    ({"image": {"repository": ""}}, "/image/repository"),
    ({"image": {"pullPolicy": "Often"}}, "/image/pullPolicy"),
    ({"image": {"digest": "sha256:4f5c"}}, "/image/digest"),
    ({"networkPolicy": {"apiServerPorts": []}}, "/networkPolicy/apiServerPorts"),
    ({"clusterDomain": "cluster.local."}, "/clusterDomain"),
    ({"crds": {"enabled": "yes"}}, "/crds/enabled"),
    ({"crds": {"install": True}}, "/crds"),
    ({"kuberay": {"enabled": 1}}, "/kuberay/enabled"),
    ({"watchNamespaces": "a"}, "/watchNamespaces"),
    ({"watchNamespaces": ["a", "a"]}, "/watchNamespaces"),
    ({"watchNamespaces": ["a,b"]}, "/watchNamespaces/0"),
    ({"watchNamespaces": ["Upper"]}, "/watchNamespaces/0"),
    ({"watchNamespaces": ["a" * 64]}, "/watchNamespaces/0"),
    ({"defaults": []}, "/defaults"),
    ({"defaults": {"imagee": "x"}}, "/defaults"),
    ({"tokenKey": {"key": "secret"}}, "/tokenKey"),
    ({"rbac": {"create": "no"}}, "/rbac/create"),
    ({"serviceAccount": {"annotations": {"a": 1}}}, "/serviceAccount/annotations/a"),
    ({"workers": 0}, "/workers"),
    ({"workers": 257}, "/workers"),
    ({"workers": "16"}, "/workers"),
    ({"api": {"qps": 0}}, "/api/qps"),
    ({"api": {"burst": 0}}, "/api/burst"),
    ({"concurrency": {"maxRunning": -1}}, "/concurrency/maxRunning"),
    ({"concurrency": {"maxRunningPerNamespace": "2"}}, "/concurrency/maxRunningPerNamespace"),
    ({"logging": {"format": "text"}}, "/logging/format"),
    ({"logging": {"level": "TRACE"}}, "/logging/level"),
    ({"metrics": {"service": {"port": "http"}}}, "/metrics/service/port"),
    ({"metrics": {"podMonitor": {"interval": "often"}}}, "/metrics/podMonitor/interval"),
    ({"commonLabels": {"a": 1}}, "/commonLabels/a"),
    ({"imagePullSecrets": ["name"]}, "/imagePullSecrets/0"),
    ({"tolerations": {}}, "/tolerations"),
    ({"extraEnv": {"A": "b"}}, "/extraEnv"),
    ({"priorityClassName": 1}, "/priorityClassName"),
]


@pytest.mark.parametrize(
    ("values", "message"), INVALID, ids=[json.dumps(v)[:50] for v, _ in INVALID]
)
def test_value_is_refused_by_name(chart: Chart, values: Object, message: str) -> None:
    assert message in chart.refusal(values)


def test_value_of_an_existing_service_account_requires_a_name(chart: Chart) -> None:
    message = "serviceAccount.name is required when serviceAccount.create is false"
    assert message in chart.refusal({"serviceAccount": {"create": False}})


def test_image_digest_replaces_the_tag(chart: Chart) -> None:
    digest = "sha256:" + "4f5c" * 16
    image = {"repository": "registry.example/operator", "tag": "1", "digest": digest}
    deployment = one(chart.manifests({"image": image}), "Deployment")
    found = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert found == f"registry.example/operator@{digest}"


def test_value_that_looks_like_a_number_stays_a_string(chart: Chart) -> None:
    manifests = chart.manifests({"image": {"tag": "1.10"}, "podLabels": {"version": "1.10"}})
    template = one(manifests, "Deployment")["spec"]["template"]
    assert template["spec"]["containers"][0]["image"].endswith(":1.10")
    assert template["metadata"]["labels"]["version"] == "1.10"
