"""Prometheus discovers the operator by a Service, PodMonitor or ServiceMonitor."""

from __future__ import annotations

import json
from typing import Any

import yaml

from support.cluster.chart import NAMESPACE, Chart, container, one
from support.cluster.deployment import CHART

Object = dict[str, Any]


def template(manifests: list[Object]) -> Object:
    body: Object = one(manifests, "Deployment")["spec"]["template"]
    return body


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
    result = one(manifests, "PodMonitor")
    assert result["metadata"]["namespace"] == NAMESPACE
    assert result["metadata"]["labels"]["release"] == "prometheus"
    selected = result["spec"]["selector"]["matchLabels"]
    assert selected.items() <= template(manifests)["metadata"]["labels"].items()
    (endpoint,) = result["spec"]["podMetricsEndpoints"]
    assert endpoint["interval"] == "77s"
    assert endpoint["path"] == "/metrics"
    assert endpoint["port"] in [one["name"] for one in container(manifests)["ports"]]
    assert endpoint["honorLabels"], "the label namespace names the namespace of the job"


def test_service_monitor_selects_the_service(chart: Chart) -> None:
    monitor = {"enabled": True, "interval": "78s", "labels": {"release": "prometheus"}}
    manifests = chart.manifests({"metrics": {"serviceMonitor": monitor}})
    result, service = one(manifests, "ServiceMonitor"), one(manifests, "Service")
    assert result["metadata"]["labels"]["release"] == "prometheus"
    selected = result["spec"]["selector"]["matchLabels"]
    assert selected.items() <= service["metadata"]["labels"].items()
    (endpoint,) = result["spec"]["endpoints"]
    (port,) = service["spec"]["ports"]
    assert endpoint == {
        "port": port["name"],
        "path": "/metrics",
        "interval": "78s",
        "honorLabels": True,
    }
    without = {"service": {"enabled": False}, "serviceMonitor": monitor}
    assert "requires metrics.service.enabled" in chart.refusal({"metrics": without})
    twice = {"podMonitor": {"enabled": True}, "serviceMonitor": monitor}
    assert "scrape each pod twice" in chart.refusal({"metrics": twice})


def test_alerts_link_to_their_runbooks(chart: Chart) -> None:
    rules = {"enabled": True, "labels": {"release": "prometheus"}, "runbookUrl": "https://w/page"}
    result = one(chart.manifests({"metrics": {"prometheusRule": rules}}), "PrometheusRule")
    assert result["metadata"]["labels"]["release"] == "prometheus"
    (group,) = result["spec"]["groups"]
    written = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    for alert, source in zip(group["rules"], written, strict=True):
        url = f"https://w/page#{alert['alert'].lower()}"
        assert alert == {**source, "annotations": {**source["annotations"], "runbook_url": url}}
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert alert["annotations"]["summary"]


def test_sidecar_of_grafana_finds_the_dashboard(chart: Chart) -> None:
    values = {"enabled": True, "annotations": {"folder": "jobs"}}
    maps = chart.manifests({"metrics": {"dashboard": values}})
    (result,) = (m for m in maps if m["metadata"]["name"].endswith("-dashboard"))
    assert result["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert result["metadata"]["annotations"] == {"folder": "jobs"}
    (content,) = result["data"].values()
    assert json.loads(content) == json.loads((CHART / "files" / "dashboard.json").read_text())
