"""The alerts and the dashboard query only metrics that the operator exports."""

from __future__ import annotations

import json
import re
from typing import Any

import promql_parser as promql
import pytest
import urllib3
import yaml
from prometheus_client.parser import text_string_to_metric_families

from support.cluster.deployment import CHART
from support.operator.process import OperatorProcess
from support.servers.api_server import Namespace

VARIABLES = {"$__rate_interval": "5m", "$__range": "6h", "$namespace": ".*"}
OF_SCRAPE = {"job"}
"""Labels that Prometheus adds to the series of a target."""
OF_ERRORS = {("code", "403")}
"""Matchers of series that exist only after an error."""


def queries() -> dict[str, str]:
    """Return all queries by the title of their panel or the name of their alert."""
    found = {
        each["alert"]: each["expr"]
        for each in yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    }
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            found[f"{panel['title']} {target['refId']}"] = target["expr"]
    for variable in dashboard["templating"]["list"]:
        for name, label in re.findall(r"label_values\((\w+), (\w+)\)", variable["query"]):
            found[variable["name"]] = f"count by ({label}) ({name})"
    return found


def parse(query: str) -> Any:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return promql.parse(query)


def nodes(query: Any) -> list[Any]:
    """Return all nodes of a parsed query."""
    found: list[Any] = []
    promql.walk(query, found.append)
    return found


@pytest.fixture
def series(shared_operator: OperatorProcess, namespace: Namespace, job: Any) -> Any:
    """Return the series, by name, of an operator whose jobs have succeeded, failed and wait."""
    done = job("done")
    done.succeed()
    done.status("Succeeded")
    failed = job("failed", retry={"maxAttempts": 1})
    failed.start_cluster()
    failed.start_driver()
    failed.report("failed", reason="Application", message="a step raised")
    failed.status("Failed")
    job("waiting").status("Starting")
    url = shared_operator.health.replace("/healthz", "/metrics")
    text = urllib3.request("GET", url).data.decode()
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def test_each_query_selects_exported_metrics(series: dict[str, list[dict[str, str]]]) -> None:
    known = queries()
    assert len(known) > 25
    for title, query in known.items():
        labels = set(OF_SCRAPE)
        selectors = [
            node for node in nodes(parse(query)) if isinstance(node, promql.VectorSelector)
        ]
        assert selectors, title
        for selector in selectors:
            assert selector.name in series, f"{title}: no metric {selector.name}"
            rows = series[selector.name]
            labels |= rows[0].keys()
            for matcher in selector.matchers.matchers:
                values = {row[matcher.name] for row in rows}
                if matcher.op == promql.MatchOp.Equal:
                    exact = (matcher.name, matcher.value)
                    assert exact in OF_ERRORS or matcher.value in values, f"{title}: {exact}"
        for node in nodes(parse(query)):
            if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
                assert set(node.modifier.labels) <= labels, title
