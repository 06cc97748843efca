"""The batch service of the chart: restricted pods with few permissions."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.service.config import parse_config
from chart.value_sets import BATCH_SERVICE, PROMETHEUS
from support.cluster.chart import NAMESPACE, Chart

Object = dict[str, Any]

NAME = "batchinference-batch-inference-operator-batch"
STEP = {"name": "own", "python": {"callable": "own:step"}, "batchSize": 1_000_000}
SHOWN: dict[str, tuple[Any, tuple[Any, ...], Any]] = {
    "replicas": (5, ("Deployment", "spec", "replicas"), 5),
    "image": ("m/image:1", ("container", "image"), "m/image:1"),
    "keysSecret": ("m-keys", ("keys", "secretName"), "m-keys"),
    "env": ([{"name": "M"}], ("container", "env"), [{"name": "M"}]),
    "envFrom": (
        [{"secretRef": {"name": "m"}}],
        ("container", "envFrom"),
        [{"secretRef": {"name": "m"}}],
    ),
    "serviceAccountAnnotations": (
        {"m": "role"},
        ("ServiceAccount", "metadata", "annotations"),
        {"m": "role"},
    ),
    "port": (8000, ("Service", "spec", "ports", 0, "port"), 8000),
    "resources": ({"limits": {"cpu": 1}}, ("container", "resources", "limits", "cpu"), 1),
}
"""Values of the service, where their effect is in its objects, and the effect."""


def rendered(chart: Chart, own: Object | None = None, **values: Object) -> dict[str, Any]:
    """Return the objects of the service by kind, with the container and the volume of the keys."""
    service = {**BATCH_SERVICE, **(own or {})}
    manifests = chart.manifests({"batchService": service, **values})
    by_kind: dict[str, Any] = {
        each["kind"]: each for each in manifests if each["metadata"]["name"] == NAME
    }
    pod = by_kind["Deployment"]["spec"]["template"]
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    (container,) = pod["spec"]["containers"]
    return {**by_kind, "pod": pod, "container": container, "keys": volumes["keys"]["secret"]}


def test_without_the_value_there_is_no_service(chart: Chart) -> None:
    names = {each["metadata"]["name"] for each in chart.manifests()}
    assert NAME not in names


@pytest.mark.parametrize("missing", ["path", "keysSecret"])
def test_path_and_keys_are_required(chart: Chart, missing: str) -> None:
    refusal = chart.refusal({"batchService": {**BATCH_SERVICE, missing: ""}})
    assert "batchService: set path and keysSecret" in refusal


def test_each_value_has_its_effect(chart: Chart) -> None:
    objects = rendered(chart, {name: value for name, (value, _, _) in SHOWN.items()})
    for name, (_, path, expected) in SHOWN.items():
        result = objects
        for key in path:
            result = result[key]
        assert result == expected, name


def test_pods_are_restricted_and_no_selector_of_the_operator_selects_them(chart: Chart) -> None:
    objects = rendered(chart)
    security = objects["container"]["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert objects["pod"]["spec"]["securityContext"]["runAsNonRoot"]
    assert (
        objects["Deployment"]["spec"]["selector"]
        == objects["PodDisruptionBudget"]["spec"]["selector"]
    )
    labels = objects["pod"]["metadata"]["labels"].items()
    assert objects["Service"]["spec"]["selector"].items() <= labels
    manifests = chart.manifests({"batchService": BATCH_SERVICE})
    (operator,) = (
        each
        for each in manifests
        if each["kind"] == "Deployment" and each["metadata"]["name"] != NAME
    )
    assert not operator["spec"]["selector"]["matchLabels"].items() <= labels


def test_one_replica_has_no_disruption_budget(chart: Chart) -> None:
    assert "PodDisruptionBudget" not in rendered(chart, {"replicas": 1})


def test_the_service_reads_what_the_chart_writes(chart: Chart) -> None:
    model = {"name": "a/b", "namespaces": ["a"], "spec": {"steps": [STEP]}}
    limits = {"maxLines": 12_000_000, "maxFileBytes": "500Mi"}
    own = {"models": [model], "storage": {"region": "r"}, **limits}
    text = rendered(chart, own)["ConfigMap"]["data"]["config.json"]
    config = parse_config(text)
    assert (config.max_lines, config.max_file_bytes) == (12_000_000, 500 * 2**20)
    assert config.storage.region == "r"
    assert [each.model_dump() for each in config.models] == [model]


def test_its_permissions_are_those_for_batches(chart: Chart) -> None:
    (rule,) = rendered(chart)["ClusterRole"]["rules"]
    assert rule["resources"] == ["batchinferences"]
    assert set(rule["verbs"]) == {"create", "get", "list", "patch"}
    watched = rendered(chart, watchNamespaces=["a"])
    assert "ClusterRole" not in watched
    assert (watched["Role"]["rules"], watched["Role"]["metadata"]["namespace"]) == ([rule], "a")
    (subject,) = watched["RoleBinding"]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}


def test_an_existing_account_can_be_used(chart: Chart) -> None:
    objects = rendered(chart, {"serviceAccountName": "own"})
    assert "ServiceAccount" not in objects
    assert objects["pod"]["spec"]["serviceAccountName"] == "own"
    (subject,) = objects["ClusterRoleBinding"]["subjects"]
    assert subject["name"] == "own"
    assert "ClusterRole" not in rendered(chart, rbac={"create": False})


def test_network_policy_allows_the_listed_peers(chart: Chart) -> None:
    enabled = {"enabled": True, "apiServerPorts": [8443]}
    spec = rendered(chart, networkPolicy=enabled)["NetworkPolicy"]["spec"]
    assert "ingress" not in spec
    assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
    store = {"ports": [{"port": 9000}]}
    peers = {"from": [PROMETHEUS], "egress": [store]}
    spec = rendered(chart, peers, networkPolicy=enabled)["NetworkPolicy"]["spec"]
    (ingress,) = spec["ingress"]
    assert ingress == {"ports": [{"port": "http", "protocol": "TCP"}], "from": [PROMETHEUS]}
    assert spec["egress"][1:] == [{"ports": [{"port": 8443, "protocol": "TCP"}]}, store]
