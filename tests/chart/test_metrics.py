"""Prometheus discovers the operator by its Service or by a PodMonitor."""

from __future__ import annotations

from typing import Any

from support.cluster.chart import NAMESPACE, Chart, container, one

Object = dict[str, Any]


def template(manifests: list[Object]) -> Object:
    found: Object = one(manifests, "Deployment")["spec"]["template"]
    return found


def test_metrics_service_selects_pods_and_port(chart: Chart) -> None:
    manifests = chart.manifests({"metrics": {"service": {"port": 9000}}})
    spec = one(manifests, "Service")["spec"]
    assert spec["selector"].items() <= template(manifests)["metadata"]["labels"].items()
    (port,) = spec["ports"]
    assert port["port"] == 9000
    assert port["targetPort"] in [one["name"] for one in container(manifests)["ports"]]


def test_pod_monitor_selects_pods_and_port(chart: Chart) -> None:
    monitor = {"enabled": True, "interval": "77s", "labels": {"release": "prometheus"}}
    manifests = chart.manifests({"metrics": {"podMonitor": monitor}})
    found = one(manifests, "PodMonitor")
    assert found["metadata"]["namespace"] == NAMESPACE
    assert found["metadata"]["labels"]["release"] == "prometheus"
    selected = found["spec"]["selector"]["matchLabels"]
    assert selected.items() <= template(manifests)["metadata"]["labels"].items()
    (endpoint,) = found["spec"]["podMetricsEndpoints"]
    assert endpoint["interval"] == "77s"
    assert endpoint["path"] == "/metrics"
    assert endpoint["port"] in [one["name"] for one in container(manifests)["ports"]]
