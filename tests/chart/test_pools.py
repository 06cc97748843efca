"""Pools of warm clusters: their settings, owners and additional permissions."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from batchinference.spec.cluster import Cluster
from batchinference_operator.reconcile.pool import parse_pools
from support.cluster.chart import NAMESPACE, Chart, container, defaults_map, one

Object = dict[str, Any]

POOLS: list[Object] = [
    {"namespace": "team-a", "name": "any", "size": 3},
    {"namespace": "team-a", "name": "large", "spec": {"cluster": {"workers": {"memory": "9Gi"}}}},
    {"namespace": "team-b", "name": "any", "maxAge": "1h"},
]


def of_pools(manifests: list[Object], kind: str) -> list[Object]:
    found = [each for each in manifests if each["kind"] == kind]
    return [each for each in found if "pool" in each["metadata"]["name"]]


def test_without_pools_there_are_no_additional_objects_or_settings(chart: Chart) -> None:
    manifests = chart.manifests()
    assert [of_pools(manifests, kind) for kind in ("ConfigMap", "Role", "RoleBinding")] == [[]] * 3
    assert "pools.yaml" not in defaults_map(manifests)["data"]
    assert "POOLS" not in yaml.safe_dump(container(manifests))
    assert "checksum/pools" not in str(one(manifests, "Deployment"))


def test_operator_reads_the_pools(chart: Chart) -> None:
    manifests = chart.manifests({"pools": POOLS})
    pools = parse_pools(defaults_map(manifests)["data"]["pools.yaml"], Cluster(image="any:1"))
    assert [pool.key for pool in pools] == [(each["namespace"], each["name"]) for each in POOLS]
    assert [pool.settings.size for pool in pools] == [3, 1, 1]
    assert [pool.settings.max_age for pool in pools] == ["24h", "24h", "1h"]
    assert len({pool.fingerprint for pool in pools}) == 2
    variables = {each["name"]: each.get("value") for each in container(manifests)["env"]}
    file = variables["BATCHINFERENCE_OPERATOR_POOLS_FILE"]
    assert file == "/etc/batchinference-operator/pools.yaml"


def test_change_of_the_pools_restarts_the_operator(chart: Chart) -> None:
    first, second = (
        one(chart.manifests({"pools": pools}), "Deployment")["spec"]["template"]["metadata"]
        for pools in (POOLS, POOLS[:1])
    )
    assert first["annotations"] != second["annotations"]


def test_each_pool_has_an_owner_in_its_namespace(chart: Chart) -> None:
    owners = of_pools(chart.manifests({"pools": POOLS}), "ConfigMap")
    places = [(each["metadata"]["namespace"], each["metadata"]["name"]) for each in owners]
    assert places == [
        ("team-a", "batch-inference-pool-any"),
        ("team-a", "batch-inference-pool-large"),
        ("team-b", "batch-inference-pool-any"),
    ]


def test_additional_permissions_are_limited_to_the_namespaces_of_pools(chart: Chart) -> None:
    roles = of_pools(chart.manifests({"pools": POOLS}), "Role")
    assert [role["metadata"]["namespace"] for role in roles] == ["team-a", "team-b"]
    clusters, owners = roles[0]["rules"]
    assert (clusters["resources"], clusters["verbs"]) == (
        ["rayclusters"],
        ["create", "list"],
    )
    assert owners["resourceNames"] == ["batch-inference-pool-any", "batch-inference-pool-large"]
    assert (owners["resources"], owners["verbs"]) == (["configmaps"], ["get"])


def test_without_rbac_there_are_no_permissions(chart: Chart) -> None:
    manifests = chart.manifests({"pools": POOLS, "rbac": {"create": False}})
    assert of_pools(manifests, "Role") == []
    assert len(of_pools(manifests, "ConfigMap")) == len(POOLS)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"pools": [{"namespace": NAMESPACE, "name": "any"}]},
            "any is in the operator's namespace",
        ),
        (
            {"pools": POOLS, "watchNamespaces": ["team-a"]},
            "any is in namespace team-b, which the operator does not watch",
        ),
        (
            {"pools": [{"namespace": "a", "name": "any"}] * 2},
            "two pools of namespace a are named any",
        ),
    ],
    ids=["own-namespace", "unwatched", "same-name"],
)
def test_pool_that_no_job_could_use_is_refused(chart: Chart, values: Object, message: str) -> None:
    assert message in chart.refusal(values)
