"""The NetworkPolicy of the operator's pod."""

from __future__ import annotations

from typing import Any

from support.cluster.chart import Chart, one

Object = dict[str, Any]
PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}


def ports(rule: Object) -> set[Any]:
    return {port["port"] for port in rule["ports"]}


def test_network_policy_allows_what_the_operator_needs(chart: Chart) -> None:
    manifests = chart.manifests({"networkPolicy": {"enabled": True}})
    spec = one(manifests, "NetworkPolicy")["spec"]
    pod = one(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert spec["podSelector"]["matchLabels"].items() <= pod.items()
    (metrics,) = spec["ingress"]
    assert (ports(metrics), "from" in metrics) == ({"http"}, False)
    dns, api_server, heads = spec["egress"]
    assert [ports(rule) for rule in (dns, api_server, heads)] == [{53}, {443, 6443}, {8265}]
    (peer,) = heads["to"]
    assert peer["podSelector"]["matchLabels"] == {"ray.io/node-type": "head"}


def test_network_policy_follows_the_values(chart: Chart) -> None:
    values = {"enabled": True, "metricsFrom": [PROMETHEUS], "apiServerPorts": [8443]}
    spec = one(chart.manifests({"networkPolicy": values}), "NetworkPolicy")["spec"]
    assert spec["ingress"][0]["from"] == [PROMETHEUS]
    assert ports(spec["egress"][1]) == {8443}
