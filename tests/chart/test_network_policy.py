"""The NetworkPolicy of the operator's pod."""

from __future__ import annotations

from typing import Any

from batchinference.rendering import NAME_LABEL
from batchinference_operator.status.ray_job_view import DASHBOARD_PORT
from chart.value_sets import KUBERAY, PROMETHEUS
from support.cluster.chart import NAMESPACE, Chart, one

Object = dict[str, Any]

DNS = {53, 5353}
"""The ports of the pods of DNS: policies hold after the translation of a Service's address."""


def ports(rule: Object) -> set[Any]:
    return {port["port"] for port in rule["ports"]}


def test_network_policy_allows_what_the_operator_needs(chart: Chart) -> None:
    manifests = chart.manifests({"networkPolicy": {"enabled": True}})
    spec = one(manifests, "NetworkPolicy")["spec"]
    pod = one(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert spec["podSelector"]["matchLabels"].items() <= pod.items()
    (metrics,) = spec["ingress"]
    assert (ports(metrics), len(metrics["from"])) == ({"http"}, 1)
    dns, api_server, heads = spec["egress"]
    assert [ports(rule) for rule in (dns, api_server, heads)] == [DNS, {443, 6443}, {8265}]
    (peer,) = heads["to"]
    assert peer["podSelector"]["matchLabels"] == {"ray.io/node-type": "head"}


def test_operator_may_reach_other_ports_only_for_notifications(chart: Chart) -> None:
    urls = ["https://hooks.example/a/", "http://alerts.monitoring:9093/", "http://other/"]
    values = {"networkPolicy": {"enabled": True}, "policy": {"notifications": urls}}
    spec = one(chart.manifests(values), "NetworkPolicy")["spec"]
    assert ports(spec["egress"][-1]) == {443, 9093, 80}


def test_network_policy_follows_the_values(chart: Chart) -> None:
    values = {"enabled": True, "metricsFrom": [PROMETHEUS], "apiServerPorts": [8443]}
    spec = one(chart.manifests({"networkPolicy": values}), "NetworkPolicy")["spec"]
    test, prometheus = spec["ingress"][0]["from"]
    assert prometheus == PROMETHEUS
    (pod,) = (m for m in chart.manifests({"networkPolicy": values}) if m["kind"] == "Pod")
    assert test["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert ports(spec["egress"][1]) == {8443}


def test_pods_of_jobs_accept_each_other_the_operator_and_kuberay(chart: Chart) -> None:
    jobs_in = {"enabled": True, "namespaces": ["a", "b"], "kuberayFrom": [KUBERAY]}
    values = {"rayPods": jobs_in, "metricsFrom": [PROMETHEUS]}
    manifests = chart.manifests({"networkPolicy": values, "nameOverride": "own"})
    policies = [m for m in manifests if m["kind"] == "NetworkPolicy"]
    assert [policy["metadata"]["namespace"] for policy in policies] == ["a", "b"]
    spec = policies[0]["spec"]
    jobs = {"matchExpressions": [{"key": NAME_LABEL, "operator": "Exists"}]}
    assert (spec["podSelector"], spec["policyTypes"]) == (jobs, ["Ingress"])
    within, dashboard, metrics = spec["ingress"]
    assert within == {"from": [{"podSelector": jobs}]}
    operator, kuberay = dashboard["from"]
    pod = one(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert operator["podSelector"]["matchLabels"].items() <= pod.items()
    assert NAMESPACE in operator["namespaceSelector"]["matchLabels"].values()
    assert kuberay == KUBERAY
    assert (ports(dashboard), ports(metrics)) == ({DASHBOARD_PORT}, {8080})
    assert metrics["from"] == [PROMETHEUS]


def test_pods_of_jobs_connect_to_each_other_dns_and_the_listed_peers(chart: Chart) -> None:
    storage = {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 443}]}
    jobs_in = {"enabled": True, "namespaces": ["a"], "kuberayFrom": [KUBERAY], "egress": [storage]}
    spec = one(chart.manifests({"networkPolicy": {"rayPods": jobs_in}}), "NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    within, dns, listed = spec["egress"]
    assert within == {"to": [{"podSelector": spec["podSelector"]}]}
    assert (ports(dns), listed) == (DNS, storage)


def test_network_policy_of_jobs_needs_their_namespaces(chart: Chart) -> None:
    values = {"networkPolicy": {"rayPods": {"enabled": True, "kuberayFrom": [KUBERAY]}}}
    assert "networkPolicy.rayPods.namespaces: list" in chart.refusal(values)
    watched = chart.manifests({**values, "watchNamespaces": ["a"]})
    assert one(watched, "NetworkPolicy")["metadata"]["namespace"] == "a"


def test_kuberay_is_known_by_its_namespace(chart: Chart) -> None:
    """Each tenant can give a pod the labels of KubeRay."""
    values = {
        "networkPolicy": {"rayPods": {"enabled": True}},
        "watchNamespaces": ["a"],
        "kuberay": {"enabled": False},
    }
    assert "networkPolicy.rayPods.kuberayFrom: name the namespace" in chart.refusal(values)
    with_kuberay = chart.manifests({**values, "kuberay": {"enabled": True}})
    dashboard = one(with_kuberay, "NetworkPolicy")["spec"]["ingress"][1]
    for peer in dashboard["from"]:
        assert peer["namespaceSelector"]["matchLabels"] == {
            "kubernetes.io/metadata.name": NAMESPACE
        }
        assert peer["podSelector"]["matchLabels"]
