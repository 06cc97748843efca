"""docs/operations.md describes the metrics, alerts and settings of the operator."""

from __future__ import annotations

import re
from typing import Any

import yaml

from batchinference_operator.controller.cache import Cache
from batchinference_operator.controller.workqueue import WorkQueue
from batchinference_operator.kube.watch_health import PATIENCE
from batchinference_operator.observability.metrics import Metrics
from batchinference_operator.settings import OperatorSettings
from batchinference_operator.status.ray_job import DASHBOARD_PORT
from support.documents.pages import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text()


def described() -> list[tuple[str, str, str, str]]:
    """Return name, type, labels and meaning of each metric of the operator."""
    metrics = Metrics()
    metrics.add_operator(WorkQueue[str](), Cache().phases)
    found = []
    for family in metrics.registry.collect():
        if not family.name.startswith("batchinference_"):
            continue
        collector = metrics.registry._names_to_collectors.get(family.name)
        labels = getattr(collector, "_labelnames", None) or ("phase",) * ("jobs" in family.name)
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found.append((name, family.type, ", ".join(labels), family.documentation))
    return found


def shown(kind: str) -> dict[str, Any]:
    manifests = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
    (found,) = (manifest for manifest in manifests if manifest["kind"] == kind)
    return dict(found)


def test_table_of_metrics() -> None:
    rows = [
        f"| `{name}` | {kind} | {labels} | {about} |" for name, kind, labels, about in described()
    ]
    table = "\n".join(["| metric | type | labels | what |", "| --- | --- | --- | --- |", *rows])
    found = re.search(r"<!-- metrics -->\n(.*?)\n?<!-- end -->", PAGE, re.DOTALL)
    assert found is not None
    assert found.group(1) == table


def test_alerts_use_existing_metrics() -> None:
    names = {name for name, *_ in described()}
    for rule in shown("PrometheusRule")["spec"]["groups"][0]["rules"]:
        asked = set(re.findall(r"batchinference_\w+", rule["expr"]))
        assert asked
        assert asked <= names
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_network_policy_opens_the_dashboard_port() -> None:
    policy = shown("NetworkPolicy")["spec"]
    assert policy["ingress"][0]["ports"] == [{"port": DASHBOARD_PORT, "protocol": "TCP"}]
    (chart,) = (ROOT / "charts").glob("*/Chart.yaml")
    (operator, _) = policy["ingress"][0]["from"]
    labels = {"app.kubernetes.io/name": yaml.safe_load(chart.read_text())["name"]}
    assert operator["podSelector"]["matchLabels"] == labels


def test_timeout_of_a_dead_watch() -> None:
    admission = OperatorSettings.model_fields["watch_seconds"].default
    assert f"{PATIENCE * admission} s" in PAGE
