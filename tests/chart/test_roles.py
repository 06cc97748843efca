"""Permissions in the whole cluster, or only in the watched namespaces."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec.notifications import SECRET
from support.cluster.chart import NAMESPACE, Chart, container, one

Object = dict[str, Any]

WATCHED = {"watchNamespaces": ["team-a", "team-b"]}


def kinds(manifests: list[Object]) -> set[str]:
    return {manifest["kind"] for manifest in manifests}


def of_kind(manifests: list[Object], kind: str) -> list[Object]:
    """Return the manifests of a kind, without those of the leader election and the marker of a
    release for all namespaces."""
    result = [manifest for manifest in manifests if manifest["kind"] == kind]
    others = ("-leader", "-all-namespaces")
    return [each for each in result if not each["metadata"]["name"].endswith(others)]


def test_cluster_role_is_created_for_all_namespaces(chart: Chart) -> None:
    manifests = chart.manifests()
    assert {"ClusterRole", "ClusterRoleBinding"} <= kinds(manifests)
    assert of_kind(manifests, "Role") == of_kind(manifests, "RoleBinding") == []


@pytest.mark.parametrize(
    ("values", "namespace", "name"),
    [
        ({}, NAMESPACE, "batch-inference-operator"),
        ({"leaderElection": {"namespace": "shared"}}, "shared", "batch-inference-operator"),
        (WATCHED, NAMESPACE, "own"),
    ],
    ids=["all namespaces", "another namespace", "watched namespaces"],
)
def test_only_the_lease_of_the_operator_can_be_changed(
    chart: Chart, values: Object, namespace: str, name: str
) -> None:
    """Releases that watch all namespaces use the same Lease. Other releases use their own Lease."""
    manifests = chart.manifests({**values, "fullnameOverride": "own"})
    (role,) = (
        m for m in manifests if m["kind"] == "Role" and m["metadata"]["name"] == "own-leader"
    )
    assert role["metadata"]["namespace"] == namespace
    (create, change) = role["rules"]
    assert create["verbs"] == ["create"]
    assert (change["resourceNames"], change["verbs"]) == ([name], ["get", "update"])
    variables = {each["name"]: each["value"] for each in container(manifests)["env"]}
    assert variables["BATCHINFERENCE_OPERATOR_LEASE"] == f"{namespace}/{name}"


@pytest.mark.parametrize("values", [{}, WATCHED], ids=["all namespaces", "watched namespaces"])
def test_operator_reads_only_the_secrets_of_notifications(chart: Chart, values: Object) -> None:
    def readable(values: Object) -> list[Any]:
        rules = [r for m in chart.manifests(values) if m["kind"].endswith("Role")
                 for r in m["rules"] if "secrets" in r["resources"]]  # fmt: skip
        return [(rule["verbs"], rule.get("resourceNames")) for rule in rules]

    assert {tuple(verbs) for verbs, _ in readable(values)} == {("create",)}
    allowed = readable({**values, "policy": {"notifications": ["https://hooks.example/"]}})
    assert (["get"], [SECRET]) in allowed
    assert all(names == [SECRET] for verbs, names in allowed if verbs != ["create"])


def test_roles_are_created_in_watched_namespaces_only(chart: Chart) -> None:
    manifests = chart.manifests(WATCHED)
    assert {"ClusterRole", "ClusterRoleBinding"}.isdisjoint(kinds(manifests))
    for kind in ("Role", "RoleBinding"):
        namespaces = [manifest["metadata"]["namespace"] for manifest in of_kind(manifests, kind)]
        assert namespaces == WATCHED["watchNamespaces"]


def test_roles_and_cluster_role_grant_the_same_permissions(chart: Chart) -> None:
    (role,) = of_kind(chart.manifests({"rbac": {"aggregate": False}}), "ClusterRole")
    everywhere = role["rules"]
    within = [role["rules"] for role in of_kind(chart.manifests(WATCHED), "Role")]
    (extra,) = (rule for rule in everywhere if rule not in within[0])
    assert extra["resources"] == ["customresourcedefinitions"]
    assert within == [[rule for rule in everywhere if rule != extra]] * 2


def test_roles_are_aggregated_to_view_edit_and_admin(chart: Chart) -> None:
    aggregate = "rbac.authorization.k8s.io/aggregate-to-"
    given = {
        label.removeprefix(aggregate): role["rules"]
        for role in of_kind(chart.manifests(), "ClusterRole")
        for label in role["metadata"]["labels"]
        if label.startswith(aggregate)
    }
    assert set(given) == {"view", "edit", "admin"}
    ((view,), (edit,)) = given["view"], given["edit"]
    assert view["verbs"] == ["get", "list", "watch"]
    assert set(edit["verbs"]).isdisjoint(view["verbs"])
    assert view["resources"] == edit["resources"] == ["batchinferences", "batchinferenceschedules"]


@pytest.mark.parametrize("values", [{}, WATCHED], ids=["all", "some"])
def test_role_bindings_refer_to_role_and_service_account(chart: Chart, values: Object) -> None:
    manifests = chart.manifests(values)
    account = one(manifests, "ServiceAccount")["metadata"]
    bindings = [m for m in manifests if m["kind"].endswith("RoleBinding")]
    assert bindings
    for binding in bindings:
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": account["name"], "namespace": NAMESPACE}
        ]
        role = binding["roleRef"]
        assert role["kind"] == binding["kind"].removesuffix("Binding")
        assert role["name"] in {
            m["metadata"]["name"] for m in manifests if m["kind"] == role["kind"]
        }


def test_existing_service_account_can_be_used(chart: Chart) -> None:
    manifests = chart.manifests({"serviceAccount": {"create": False, "name": "own"}})
    assert "ServiceAccount" not in kinds(manifests)
    pod = one(manifests, "Deployment")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "own"
    (subject,) = one(manifests, "ClusterRoleBinding")["subjects"]
    assert subject["name"] == "own"
