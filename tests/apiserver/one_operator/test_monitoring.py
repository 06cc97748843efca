"""A real Prometheus scrapes the operator, and the dashboard and the alerts find data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import yaml

from support.cluster.chart import Chart, one
from support.documents.minimal import document, model_step
from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import LONG_AGO, SimulatedJob, soon, stamp
from support.servers.api_server import Namespace
from support.servers.dashboard import Dashboard
from support.servers.prometheus import Prometheus, nodes, running

Object = dict[str, Any]

pytestmark = pytest.mark.long("monitoring")
VARIABLES = {"$__rate_interval": "4s", "$__range": "6h"}
"""The values that Grafana would use. The rate interval is four times the scrape interval."""
RANGE_SECONDS = 300
"""The time range of the dashboard, longer than the run."""


@pytest.fixture(scope="module")
def manifests(chart: Chart) -> list[Object]:
    kinds = ("podMonitor", "prometheusRule", "dashboard")
    return chart.manifests({"metrics": {kind: {"enabled": True} for kind in kinds}})


@pytest.fixture(scope="module")
def prometheus(
    manifests: list[Object],
    shared_operator: OperatorProcess,
    module_namespace: Namespace,
    dashboard: Dashboard,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes the operator while jobs succeed, fail and are refused."""
    directory = tmp_path_factory.mktemp("prometheus")
    (directory / "rules.yml").write_text(yaml.safe_dump(one(manifests, "PrometheusRule")["spec"]))
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [scrape_config(one(manifests, "PodMonitor"), shared_operator)],
    }
    with running(config, directory) as prometheus:
        run_jobs(prometheus, module_namespace, dashboard)
        yield prometheus


def scrape_config(monitor: Object, operator: OperatorProcess) -> Object:
    """Return what the Prometheus operator makes of a PodMonitor, for the operator's process."""
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    name, namespace = monitor["metadata"]["name"], monitor["metadata"]["namespace"]
    labels = {"job": f"{namespace}/{name}", "namespace": namespace, "pod": "operator-0"}
    address = operator.health.split("/")[2]
    return {
        "job_name": "operator",
        "metrics_path": endpoint["path"],
        "honor_labels": endpoint["honorLabels"],
        "static_configs": [{"targets": [address], "labels": labels}],
    }


def run_jobs(prometheus: Prometheus, namespace: Namespace, dashboard: Dashboard) -> None:
    """Run jobs, and wait until Prometheus has scraped the result."""
    attempts = f'batchinference_attempts_total{{namespace="{namespace.name}"}}'
    done, failed = (with_gpu(namespace, dashboard, name) for name in ("done", "failed"))
    soon("the first scrape", lambda: prometheus.results(attempts))
    done.succeed()
    done.status("Succeeded")
    failed.report("failed", reason="Application", message="a step raised")
    failed.status("Failed")
    refuse_ray_jobs(namespace)
    namespace.create(document("refused"))
    SimulatedJob(namespace, "refused", dashboard).status("Pending", "Refused")
    refusals = 'rate(batchinference_api_requests_total{code="403"}[1m])'
    soon("the last scrape", lambda: prometheus.results(refusals))


def with_gpu(namespace: Namespace, dashboard: Dashboard, name: str) -> SimulatedJob:
    """Return a job whose driver runs and that has used its GPU."""
    steps = [model_step(resources={"gpu": 1})]
    namespace.create(document(name, steps=steps, retry={"maxAttempts": 1}))
    job = SimulatedJob(namespace, name, dashboard)
    job.start_cluster()
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(LONG_AGO)}
    job.create_pod({"conditions": [scheduled]}, group=-1)
    job.start_driver()
    job.report("running", progress={"rows": 410, "total": 1000, "percent": 41})
    soon("Device seconds", lambda: job.body.get("status", {}).get("deviceSeconds"))
    return job


def refuse_ray_jobs(namespace: Namespace) -> None:
    """Refuse new RayJobs by a quota. The quota controller would set this status."""
    spec = {"hard": {"count/rayjobs.ray.io": "0"}}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
    namespace.create({**quota, "spec": spec})
    namespace.patch_status("ResourceQuota", "none", {**spec, "used": spec["hard"]})


def test_each_panel_gets_data(
    manifests: list[Object], prometheus: Prometheus, module_namespace: Namespace
) -> None:
    (data,) = (m["data"] for m in manifests if m["metadata"]["name"].endswith("-dashboard"))
    dashboard = json.loads(data["batchinference.json"])
    targets = [(p["title"], each) for p in dashboard["panels"] for each in p.get("targets", [])]
    assert len(targets) > 15
    for title, target in targets:
        soon(title, partial(has_data, prometheus, target, module_namespace.name))
    (variable,) = (v for v in dashboard["templating"]["list"] if v["type"] == "query")
    source = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"])
    assert source is not None
    choices = prometheus.get(f"label/{source[2]}/values", **{"match[]": source[1]})
    assert module_namespace.name in choices


def has_data(prometheus: Prometheus, target: Object, namespace: str) -> bool:
    """Return whether Grafana gets numbers, and the labels that the legend shows."""
    query = target["expr"]
    for name, value in {**VARIABLES, "$namespace": namespace}.items():
        query = query.replace(name, value)
    results = prometheus.results(query, 0 if target.get("instant") else RANGE_SECONDS)
    shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
    return bool(results) and shown <= set().union(*results)


def test_each_alert_selects_series(prometheus: Prometheus) -> None:
    (group,) = prometheus.get("rules")["groups"]
    for rule in group["rules"]:
        assert rule["health"] == "ok", rule
        selected = prometheus.selected(rule["query"])
        assert selected
        assert all(selected.values()), f"{rule['name']}: {selected}"
        labels = {label for series in selected.values() for each in series for label in each}
        for node in nodes(prometheus.get("parse_query", query=rule["query"]), "grouping"):
            assert {*node["grouping"]} <= labels, f"{rule['name']}: {node['grouping']}"
