"""docs/operations.md tells of the metrics that there are."""

from __future__ import annotations

import re
from typing import Any

import yaml

from batchinference_operator.runtime.cache import Cache
from batchinference_operator.runtime.metrics import Metrics
from batchinference_operator.runtime.queue import KeyedQueue
from batchinference_operator.runtime.settings import OperatorSettings
from batchinference_operator.runtime.watches import PATIENCE
from batchinference_operator.status.observations import DASHBOARD_PORT
from support.documentation import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text()


def described() -> list[tuple[str, str, str, str]]:
    """Name, type, labels and meaning of each metric of ours."""
    metrics = Metrics()
    metrics.of_operator(KeyedQueue[str](), Cache())
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
    """The manifest of this kind."""
    manifests = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
    (found,) = (manifest for manifest in manifests if manifest["kind"] == kind)
    return dict(found)


def test_the_table_of_metrics_is_that_of_the_code() -> None:
    rows = [
        f"| `{name}` | {kind} | {labels} | {about} |" for name, kind, labels, about in described()
    ]
    table = "\n".join(["| metric | type | labels | what |", "| --- | --- | --- | --- |", *rows])
    found = re.search(r"<!-- metrics -->\n(.*?)\n?<!-- end -->", PAGE, re.DOTALL)
    assert found is not None
    assert found.group(1) == table


def test_alerts_ask_for_metrics_that_there_are() -> None:
    names = {name for name, *_ in described()}
    for rule in shown("PrometheusRule")["spec"]["groups"][0]["rules"]:
        asked = set(re.findall(r"batchinference_\w+", rule["expr"]))
        assert asked
        assert asked <= names
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_the_port_that_is_to_be_open_is_the_one_that_drivers_are_asked_at() -> None:
    policy = shown("NetworkPolicy")["spec"]
    assert policy["ingress"][0]["ports"] == [{"port": DASHBOARD_PORT, "protocol": "TCP"}]
    (chart,) = (ROOT / "charts").glob("*/Chart.yaml")
    (operator, _) = policy["ingress"][0]["from"]
    labels = {"app.kubernetes.io/name": yaml.safe_load(chart.read_text())["name"]}
    assert operator["podSelector"]["matchLabels"] == labels


def test_the_bound_of_a_dead_watch_is_the_one_that_is_told() -> None:
    turn = OperatorSettings.model_fields["watch_seconds"].default
    assert f"{PATIENCE * turn} s" in PAGE
