"""The API server refuses what the policy of the platform does not allow, like the operator."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from support.cluster.chart import Chart
from support.cluster.kubectl import eventually
from support.documents.minimal import document, schedule_document
from support.documents.policy_violations import OPERATOR, VALUES, VIOLATIONS, PolicyViolation
from support.servers.api_server import ApiServer, Namespace, Refused, new_namespace, refusal

Object = dict[str, Any]

ALLOWED: Object = {
    "image": "registry.example/app:1",
    "serviceAccountName": "jobs",
    "priorityClassName": "batch",
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "volumes": [{"name": "v", "image": {"reference": "mirror.example/tenants/x@sha256:0"}}],
    "envFrom": [{"prefix": "AWS_", "secretRef": {"name": "s"}}],
    "annotations": {"example.com/a": "", "karpenter.sh/do-not-disrupt": "true"},
    "profiles": {"GPU": {"runtimeClassName": "gvisor"}},
}
REFUSED = document("refused", cluster={"image": "x"}, priority=99)


class Platforms:
    """The policies of several platforms on one API server, each in its own namespace."""

    def __init__(self, server: ApiServer, chart: Chart) -> None:
        self.server, self.chart = server, chart
        self.namespaces: dict[str, Namespace] = {}

    def of(self, values: Object) -> Namespace:
        """Return the namespace in which the policy with these values of the chart applies."""
        name = repr(values)
        if name not in self.namespaces:
            namespace = new_namespace(self.server, f"tenant-{uuid.uuid4().hex[:8]}")
            self.install(values, namespace.name)
            self.namespaces[name] = namespace
        return self.namespaces[name]

    def install(self, values: Object, name: str) -> None:
        """Install the policy for one namespace, and wait until the API server applies it."""
        own_name = {"fullnameOverride": name}
        for manifest in self.chart.manifests({**values, **own_name}, "--namespace", OPERATOR):
            if not manifest["kind"].startswith("ValidatingAdmissionPolicy"):
                continue
            if manifest["kind"].endswith("Binding"):
                names = {"key": "kubernetes.io/metadata.name", "operator": "In"}
                selector = {"matchExpressions": [{**names, "values": [name]}]}
                manifest["spec"]["matchResources"] = {"namespaceSelector": selector}
            self.server.apply(manifest)
        namespace = Namespace(self.server, name)
        eventually("the policy", lambda: refusal(namespace, REFUSED) is not None, 30, 0.1)


@pytest.fixture(scope="module")
def platforms(server: ApiServer, chart: Chart) -> Platforms:
    return Platforms(server, chart)


@pytest.fixture(scope="module")
def operators_namespace(server: ApiServer, platforms: Platforms) -> Namespace:
    namespace = new_namespace(server, OPERATOR)
    platforms.install(VALUES, OPERATOR)
    return namespace


@pytest.mark.parametrize("violation", VIOLATIONS, ids=str)
def test_violation_is_refused_by_the_message_of_the_operator(
    platforms: Platforms, operators_namespace: Namespace, violation: PolicyViolation
) -> None:
    own = violation.namespace == OPERATOR
    namespace = operators_namespace if own else platforms.of(violation.chart_values)
    body = document("violation", **violation.spec)
    message = refusal(namespace, body)
    if not violation.at_apply:
        assert message is None
        return
    assert message is not None
    assert message.endswith(f"denied request: {violation.message}")
    schedule = schedule_document(template={"spec": body["spec"]})
    message = refusal(namespace, schedule) or ""
    assert message.endswith(violation.message.replace("spec.", "spec.template.spec.", 1))


def test_values_of_the_policy_are_accepted(platforms: Platforms) -> None:
    namespace = platforms.of(VALUES)
    assert refusal(namespace, document("allowed", cluster=ALLOWED, priority=10)) is None
    assert refusal(namespace, document("small")) is None


def test_all_problems_are_in_one_message(platforms: Platforms) -> None:
    cluster = {"image": "x", "serviceAccountName": "deployer"}
    message = refusal(platforms.of(VALUES), document("bad", cluster=cluster, priority=11)) or ""
    for field in ("priority", "cluster.image", "cluster.serviceAccountName"):
        assert f"spec.{field}: " in message


def test_fields_and_values_that_are_left_out_have_their_defaults(platforms: Platforms) -> None:
    namespace = platforms.of({"policy": {"maxPriority": -1, "volumes": None}})
    volume = {"name": "v", "hostPath": {"path": "/"}}
    message = refusal(namespace, document("default", cluster={"volumes": [volume]})) or ""
    assert "spec.priority: 0 is above" in message
    assert "spec.cluster.volumes[0].hostPath: " in message


def test_job_from_before_a_change_of_the_policy_can_be_suspended(
    server: ApiServer, platforms: Platforms
) -> None:
    namespace = new_namespace(server, f"tenant-{uuid.uuid4().hex[:8]}")
    namespace.create(document("older", cluster={"image": "x"}))
    platforms.install(VALUES, namespace.name)
    namespace.patch("BatchInference", "older", {"spec": {"suspend": True}})
    with pytest.raises(Refused, match=r"policy.images"):
        namespace.patch("BatchInference", "older", {"spec": {"cluster": {"image": "y"}}})
