"""A real API server accepts what the chart renders, for each set of values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chart.value_sets import NAMESPACES, SETS
from support.cluster.chart import NAMESPACE, WITH_CRDS, Chart
from support.cluster.deployment import CHART
from support.documents.yaml_files import read_yaml
from support.servers.api_server import ApiServer, Refused, new_namespace

Object = dict[str, Any]

ABOUT = read_yaml(CHART / "Chart.yaml")
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
POLICY = "ValidatingAdmissionPolicy"
"""The server takes a second to compile its rules, so names and labels are not tested."""
MONITORING = {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
"""Kinds of the Prometheus operator, which the server does not know."""


@pytest.fixture(scope="module")
def rendered(chart: Chart) -> dict[str, list[Object]]:
    """Return the objects of each set of values. A set that the schema refuses fails the test."""
    sets = {**SETS, "default": WITH_CRDS}
    return {name: chart.manifests(values) for name, values in sets.items()}


def test_server_accepts_the_objects_and_pod_security_the_pods(
    rendered: dict[str, list[Object]], bare_server: ApiServer
) -> None:
    assert len(rendered) >= 30
    for namespace in [NAMESPACE, *NAMESPACES]:
        new_namespace(bare_server, namespace, RESTRICTED)
    done, refused = set(), []
    for name, manifests in rendered.items():
        for manifest in [*manifests, *pods(manifests)]:
            text = json.dumps(manifest if manifest["kind"] != POLICY else manifest["spec"])
            if manifest["kind"] in MONITORING or text in done:
                continue
            done.add(text)
            try:
                bare_server.apply(manifest, dryRun="All")
            except Refused as refusal:
                refused.append((name, manifest["kind"], str(refusal)))
    assert refused == []


def pods(manifests: list[Object]) -> list[Object]:
    """Return the pods that Deployments create."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "pod", "namespace": NAMESPACE},
            # the account of the release does not exist in a dry run
            "spec": {**manifest["spec"]["template"]["spec"], "serviceAccountName": "default"},
        }
        for manifest in manifests
        if manifest["kind"] == "Deployment"
    ]


def test_roles_have_no_wildcards(rendered: dict[str, list[Object]]) -> None:
    rules = [
        rule
        for manifests in rendered.values()
        for manifest in manifests
        if manifest["kind"] in ("Role", "ClusterRole")
        for rule in manifest["rules"]
    ]
    assert rules
    assert [rule for rule in rules if any("*" in names for names in rule.values())] == []


def test_objects_have_unique_names_and_the_labels_of_the_release(
    rendered: dict[str, list[Object]],
) -> None:
    for values, manifests in rendered.items():
        own = [each for each in manifests if not each["metadata"]["name"].endswith("-own")]
        names = [
            (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
            for each in own
        ]
        assert len(names) == len(set(names)), values
        for manifest in own:
            labels = manifest["metadata"]["labels"]
            assert labels["app.kubernetes.io/instance"] == "batchinference"
            assert labels["app.kubernetes.io/managed-by"] == "Helm"
            assert labels["helm.sh/chart"] == f"{ABOUT['name']}-{ABOUT['version']}"
            assert all(len(value) <= 63 for value in labels.values()), values


def test_no_selector_of_the_chart_selects_the_pod_of_helm_test(
    rendered: dict[str, list[Object]],
) -> None:
    for values, manifests in rendered.items():
        tests = [each for each in manifests if each["kind"] == "Pod"]
        services = [
            each
            for each in manifests
            if each["kind"] == "Service" and not each["metadata"]["name"].endswith("-batch")
        ]
        assert bool(tests) == bool(services), values
        (service,) = services or [None]
        for pod in tests:
            assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
            selector = service["spec"]["selector"]
            assert not selector.items() <= pod["metadata"]["labels"].items(), values
            command = pod["spec"]["containers"][0]["command"][-1]
            address = f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}/readyz"
            assert f"http://{address}" in command
