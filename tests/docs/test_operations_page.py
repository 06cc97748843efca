"""docs/operations.md describes the metrics, alerts and settings of the operator."""

from __future__ import annotations

import re

import yaml

from batchinference_operator.kube.watch_health import PATIENCE
from batchinference_operator.observability.job_metrics import JobSummary
from batchinference_operator.observability.metrics import Metrics
from batchinference_operator.settings import OperatorSettings
from support.cluster.deployment import CHART
from support.documents.pages import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text()


def described() -> list[tuple[str, str, str, str]]:
    """Return name, type, labels and meaning of each metric of the operator."""
    metrics = Metrics()
    job = JobSummary("team", "Pending", waiting_since="2026-01-01T00:00:00Z", reason="Queued")
    metrics.jobs.set_jobs(lambda: [job])
    result = []
    for family in metrics.registry.collect():
        if not family.name.startswith("batchinference_"):
            continue
        collector = metrics.registry._names_to_collectors.get(family.name)
        of_sample = family.samples[0].labels if family.samples else ()
        labels = getattr(collector, "_labelnames", of_sample)
        name = f"{family.name}_total" if family.type == "counter" else family.name
        result.append((name, family.type, ", ".join(labels), family.documentation))
    return result


def test_metrics_table_is_up_to_date() -> None:
    rows = [
        f"| `{name}` | {kind} | {labels} | {about} |" for name, kind, labels, about in described()
    ]
    table = "\n".join(["| metric | type | labels | what |", "| --- | --- | --- | --- |", *rows])
    match = re.search(r"<!-- metrics -->\n(.*?)\n?<!-- end -->", PAGE, re.DOTALL)
    assert match is not None
    assert match.group(1) == table


def test_each_alert_has_a_runbook() -> None:
    alerts = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    sections = re.findall(r"^### (BatchInference\w+)$", PAGE, re.MULTILINE)
    assert sections == [alert["alert"] for alert in alerts]


def test_page_has_the_timeout_of_a_dead_watch() -> None:
    admission = OperatorSettings.model_fields["watch_seconds"].default
    assert f"{PATIENCE * admission} s" in PAGE
