"""promtool checks that each alert fires for its problem, and for nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cluster.chart import Chart, one
from support.servers.prometheus import promtool

Object = dict[str, Any]
Values = dict[str, str]
"""The values of series, one a minute, in the notation of promtool."""

pytestmark = pytest.mark.long("monitoring")
END = "120m"


def series(name: str, pod: str = "leader", **labels: str) -> str:
    """Return a series of the default release, which has a leader and a standby."""
    labels = {"job": "system/operator", "pod": pod, **labels}
    matchers = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"batchinference_{name}{{{matchers}}}"


LEADER, STANDBY_LEADER = series("leader"), series("leader", "standby")
UNWATCHED = series("namespaces_unwatched")
QUEUE = series("queue_depth")
ERRORS = series("reconcile_errors_total", kind="error")
UNREACHABLE = series("reconcile_errors_total", kind="unreachable")
REFUSED = series("api_requests_total", verb="create", resource="rayjobs", code="403")
FAILED = series("attempts_total", namespace="team", outcome="Failed", cause="OutOfMemory")
WAIT = series("longest_wait_seconds", namespace="team")
ROWS = series("rows_finished_total", namespace="team")
FAILED_ROWS = series("rows_failed_total", namespace="team")
HEALTHY = {
    LEADER: "1x120",
    STANDBY_LEADER: "0x120",
    UNWATCHED: "0x120",
    series("namespaces_unwatched", "standby"): "0x120",
    QUEUE: "20x120",
    series("queue_depth", "standby"): "0x120",
    ERRORS: "0x120",
    UNREACHABLE: "0x120",
    series("reconcile_errors_total", kind="conflict"): "0+1x120",
    series("api_requests_total", verb="create", resource="rayjobs", code="201"): "0+9x120",
    series("attempts_total", namespace="team", outcome="Succeeded", cause=""): "0+1x120",
    FAILED: "0+0.15x120",
    WAIT: "18000x120",
    series("jobs", namespace="team", phase="Running"): "2x120",
    ROWS: "0+1000x120",
    FAILED_ROWS: "0+40x120",
}
"""Up to 5 hours of waiting, 9 failed attempts an hour, and 4 % of failed rows."""


@dataclass(frozen=True)
class Problem:
    """Values that differ from HEALTHY, and the labels and the summary of the alert that fires."""

    values: Values
    labels: Values = field(default_factory=dict)
    summary: str = ""
    """If empty, the one in the rules."""


JOB, TEAM = {"job": "system/operator"}, {"namespace": "team"}
PROBLEMS = {
    "BatchInferenceOperatorDown": Problem(dict.fromkeys(HEALTHY, "_x120")),
    "BatchInferenceNoLeader": Problem({LEADER: "0x120"}, JOB),
    "BatchInferenceNamespaceUnwatched": Problem(
        {UNWATCHED: "2x120"}, JOB, "The operator has no access to 2 of its watched namespaces"
    ),
    "BatchInferenceQueueGrows": Problem({QUEUE: "150x120"}, JOB),
    "BatchInferenceReconcileErrors": Problem({ERRORS: "0+1x120"}, JOB),
    "BatchInferenceApiServerUnavailable": Problem({UNREACHABLE: "0+1x120"}, JOB),
    "BatchInferenceApiServerRefuses": Problem(
        {REFUSED: "0+1x120"},
        {"verb": "create", "resource": "rayjobs"},
        "The API server refuses to create rayjobs",
    ),
    "BatchInferenceAttemptsFail": Problem(
        {FAILED: "0+0.25x120"},
        {**TEAM, "cause": "OutOfMemory"},
        "15 attempts in namespace team failed with OutOfMemory in the last hour",
    ),
    "BatchInferenceJobsWaitLong": Problem(
        {WAIT: "25200x120"}, TEAM, "A job in namespace team has been waiting for 7h 0m 0s"
    ),
    "BatchInferenceRowsFail": Problem(
        {FAILED_ROWS: "0+60x120"}, TEAM, "6% of the rows in namespace team fail"
    ),
    "BatchInferenceNoRows": Problem(
        {ROWS: "5000x120", FAILED_ROWS: "200x120"},
        TEAM,
        "No job in namespace team has finished a row for half an hour",
    ),
}
TOLERATED = {
    "health": {},
    "no jobs": dict.fromkeys([ROWS, FAILED_ROWS], "5x120")
    | {series("jobs", namespace="team", phase="Running"): "0x120"},
    "a change of the leader": {LEADER: "1x59 0x59", STANDBY_LEADER: "0x60 1x58"},
    "a restart of all replicas": dict.fromkeys([LEADER, STANDBY_LEADER], "1x57 stale _x2 1x58"),
    "counters that start again": {ROWS: "0+1000x60 0+1000x58", FAILED_ROWS: "0+40x60 0+40x58"},
    "a namespace unwatched for ten minutes": {UNWATCHED: "0x50 1x10 0x58"},
    "a full queue for eight minutes": {QUEUE: "20x50 150x8 20x59"},
    "errors for four minutes": {ERRORS: "0x50 0+1x4 4x63"},
    "an API server down for four minutes": {UNREACHABLE: "0x50 0+9x4 36x63"},
    "a quota reached for four minutes": {REFUSED: "_x50 1+1x4 5x63"},
    "slow first rows": {
        ROWS: "0+1000x50 50000x25 50000+1000x42",
        FAILED_ROWS: "0+40x50 2000x25 2000+40x42",
    },
}


@pytest.fixture(scope="module")
def rules(chart: Chart, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with the rules of the chart."""
    objects = chart.manifests({"metrics": {"prometheusRule": {"enabled": True}}})
    file = tmp_path_factory.mktemp("rules") / "rules.yml"
    file.write_text(yaml.safe_dump(one(objects, "PrometheusRule")["spec"]))
    return file


def alerts(rules: Path) -> list[Object]:
    (group,) = yaml.safe_load(rules.read_text())["groups"]
    bodies: list[Object] = group["rules"]
    return bodies


def check(rules: Path, values: Values, **expected: list[Object]) -> None:
    """Check what promtool expects after these values."""
    inputs = [{"series": name, "values": each} for name, each in (HEALTHY | values).items()]
    test = {"interval": "1m", "input_series": inputs, **expected}
    file = rules.with_name("test.yml")
    file.write_text(yaml.safe_dump({"rule_files": [rules.name], "tests": [test]}))
    promtool("test", "rules", file)


def test_promtool_accepts_the_rules(rules: Path) -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", rules)


def test_each_alert_has_a_problem(rules: Path) -> None:
    assert [alert["alert"] for alert in alerts(rules)] == list(PROBLEMS)


@pytest.mark.parametrize("name", PROBLEMS)
def test_only_the_alert_of_a_problem_fires(rules: Path, name: str) -> None:
    problem, expected = PROBLEMS[name], []
    for alert in alerts(rules):
        labels, notes = {**alert["labels"], **problem.labels}, dict(alert["annotations"])
        notes["summary"] = problem.summary or notes["summary"]
        fires = [{"exp_labels": labels, "exp_annotations": notes}] if alert["alert"] == name else []
        expected.append({"eval_time": END, "alertname": alert["alert"], "exp_alerts": fires})
    check(rules, problem.values, alert_rule_test=expected)


@pytest.mark.parametrize("name", TOLERATED)
def test_no_alert_fires(rules: Path, name: str) -> None:
    fired = f'count_over_time(ALERTS{{alertstate="firing"}}[{END}])'
    expected = {"expr": fired, "eval_time": END, "exp_samples": []}
    check(rules, TOLERATED[name], promql_expr_test=[expected])
