"""The Prometheus metrics of the operator: values and names."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry

from batchinference.spec.causes import Cause
from batchinference.spec.report import JobState
from batchinference.spec.status import Phase
from batchinference_operator.controller.cache import Cache
from batchinference_operator.kube.api_errors import Conflict
from batchinference_operator.observability.job_metrics import JobMetrics, JobSummary
from batchinference_operator.observability.metrics import Metrics, verb_and_resource
from support.operator.harness import Harness
from support.operator.objects import CONFIG, job_body
from support.operator.virtual_time import in_virtual_time


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"batchinference_{name}", labels) or 0.0


RAY_JOB = "/apis/ray.io/v1/namespaces/a/rayjobs/b"
JOBS = "/apis/batchinference.dev/v1beta1/namespaces/a/batchinferences"


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/apis/ray.io/v1/namespaces/a/rayjobs", ("list", "rayjobs")),
        ("GET", "/apis/ray.io/v1/rayjobs?watch=true&timeoutSeconds=60", ("watch", "rayjobs")),
        ("GET", f"{RAY_JOB}", ("get", "rayjobs")),
        ("GET", "/api/v1/namespaces/a/events?fieldSelector=x", ("list", "events")),
        ("GET", "/api/v1/pods?limit=500", ("list", "pods")),
        ("GET", f"{JOBS}/b.c/status", ("get", "batchinferences/status")),
        ("GET", "/apis", ("get", "discovery")),
        ("GET", "/apis/ray.io/v1", ("get", "discovery")),
        ("GET", "/version", ("get", "discovery")),
        ("POST", RAY_JOB, ("create", "rayjobs")),
        ("PATCH", RAY_JOB, ("patch", "rayjobs")),
        ("DELETE", RAY_JOB, ("delete", "rayjobs")),
    ],
)
def test_request_is_described_as_in_rbac(method: str, path: str, expected: tuple[str, str]) -> None:
    assert verb_and_resource(method, path) == expected


def test_request_without_an_answer_is_counted() -> None:
    metrics = Metrics()
    metrics.record_request("GET", "/api/v1/pods", None, 30.0)
    labels = {"verb": "list", "resource": "pods"}
    assert value(metrics, "api_requests_total", **labels, code="none") == 1
    assert value(metrics, "api_request_seconds_sum", **labels) == 30


def test_counters_of_a_namespace_start_at_zero() -> None:
    """Prometheus does not see an increase in a series that starts at 1."""
    metrics = Metrics()
    metrics.jobs.set_jobs(lambda: [JobSummary("team", Phase.PENDING)])
    list(metrics.registry.collect())  # the first scrape after the first job
    result = metrics.registry.get_sample_value
    for name in ("rows_finished", "rows_failed", "device_seconds", "cpu_seconds"):
        assert result(f"batchinference_{name}_total", {"namespace": "team"}) == 0
    for name in ("attempts", "attempt_device_seconds"):
        for cause in Cause:
            labels = {"namespace": "team", "outcome": "Failed", "cause": cause.value}
            assert result(f"batchinference_{name}_total", labels) == 0


@pytest.mark.parametrize(
    ("state", "rows", "cause"),
    [(JobState.SUCCEEDED, 100, ""), (JobState.FAILED, None, "Application")],
)
@in_virtual_time
async def test_metrics_of_a_finished_job(
    harness: Harness, state: JobState, rows: int | None, cause: str
) -> None:
    async with harness.recorded_operator() as metrics:
        await harness.finish_job(state)
    end = {"namespace": "team", "outcome": state.value.capitalize(), "cause": cause}
    assert value(metrics, "attempts_total", **end) == 1
    assert rows is None or value(metrics, "rows_finished_total", namespace="team") == rows
    written = value(metrics, "status_writes_total", result="written")
    assert written == harness.count("patch status")
    assert value(metrics, "reconcile_seconds_count") >= written
    assert value(metrics, "events_total", result="posted") == 2


@in_virtual_time
async def test_conflicts_are_counted(harness: Harness) -> None:
    conflicts = [Conflict("the object has been modified")]

    def fail(call: str) -> None:
        if call == "patch status" and conflicts:
            raise conflicts.pop()

    harness.api.before = fail
    async with harness.recorded_operator() as metrics:
        await harness.start_job()
    assert value(metrics, "reconcile_errors_total", kind="conflict") == 1
    assert value(metrics, "status_writes_total", result="conflict") == 1


def test_usage_counters_grow_by_the_difference_of_statuses() -> None:
    metrics = Metrics()
    first = {
        "deviceSeconds": 10,
        "cpuSeconds": 40,
        "progress": {"rows": 7},
        "counts": {"failed": 2, "inputTokens": 9, "outputTokens": 4},
    }
    lost = {"number": 1, "outcome": "Failed", "cause": "NodeLost", "deviceSeconds": 25}
    metrics.jobs.record_status_change("team", {}, first)
    metrics.jobs.record_status_change(
        "team", first, {**first, "deviceSeconds": 25, "attempt": 1, "attempts": [lost]}
    )
    assert value(metrics, "device_seconds_total", namespace="team") == 25
    assert value(metrics, "cpu_seconds_total", namespace="team") == 40
    assert value(metrics, "rows_finished_total", namespace="team") == 7
    assert value(metrics, "rows_failed_total", namespace="team") == 2
    tokens = {"input": 9, "cached": 0, "output": 4}
    for kind, number in tokens.items():
        assert value(metrics, "tokens_total", namespace="team", kind=kind) == number
    end = {"namespace": "team", "outcome": "Failed", "cause": "NodeLost"}
    assert value(metrics, "attempt_device_seconds_total", **end) == 25


def test_warnings_are_counted_by_name_and_unknown_names_together() -> None:
    metrics = Metrics()
    for count in (2, 5):
        after = {"warnings": [
            {"name": "TextCut", "step": "a", "count": count},
            {"name": "TextCut", "step": "b", "count": 1},
            {"name": "made by a tenant", "count": 7},
        ]}  # fmt: skip
        before = {"warnings": [{"name": "TextCut", "count": 3}]} if count == 5 else {}
        metrics.jobs.record_status_change("team", before, after)
    counted = {
        name: metrics.registry.get_sample_value(
            "batchinference_warnings_total", {"namespace": "team", "name": name}
        )
        for name in ("TextCut", "_other", "Rotated")
    }
    assert counted == {"TextCut": 3 + 3, "_other": 14, "Rotated": 0}


def test_outcomes_and_causes_that_a_user_has_written_share_one_series() -> None:
    metrics = Metrics()
    written = [
        {"number": number, "outcome": outcome, "cause": f"own-{number}", "deviceSeconds": 5}
        for number, outcome in enumerate(("Failed", "Succeeded", "a word"), start=1)
    ]
    metrics.jobs.record_status_change("team", {}, {"attempts": written})
    labels = {"namespace": "team", "outcome": "_other", "cause": "_other"}
    assert value(metrics, "attempts_total", **labels) == 3
    assert value(metrics, "attempt_device_seconds_total", **labels) == 15
    labelled = [s.labels for f in metrics.registry.collect() for s in f.samples]
    assert not [labels for labels in labelled if labels.get("cause", "").startswith("own-")]


def test_namespaces_above_the_limit_share_one_series() -> None:
    """Each namespace has its own series, so a platform with many must not overload Prometheus."""
    metrics = Metrics(max_namespaces=2)
    names = ["a", "b", "c", "d", "a"]
    metrics.jobs.set_jobs(lambda: [JobSummary(name, Phase.RUNNING) for name in names])
    for name in names:
        metrics.jobs.record_status_change(name, {}, {"progress": {"rows": 1}})
    shares = {"a": 2, "b": 1, "_other": 2}
    for name, count in shares.items():
        assert value(metrics, "jobs", namespace=name, phase="Running") == count
        assert value(metrics, "rows_finished_total", namespace=name) == count
    labelled = [s.labels for f in metrics.registry.collect() for s in f.samples]
    assert {labels["namespace"] for labels in labelled if "namespace" in labels} == set(shares)


def ended(name: str, kind: str) -> dict[str, object]:
    conditions = [{"type": kind, "status": "True"}]
    return job_body(name, uid=name, status={"phase": kind, "conditions": conditions})


def test_jobs_are_counted_by_phase() -> None:
    cache, metrics = Cache(CONFIG), Metrics()
    cache.set_job(job_body("new", uid="new"))
    cache.set_job(job_body("running", uid="running", status={"phase": "Running"}))
    cache.set_job(ended("good", "Complete"))
    cache.set_job(ended("bad", "Failed"))
    metrics.jobs.set_jobs(cache.summaries)
    counts = {phase.value: value(metrics, "jobs", namespace="team", phase=phase) for phase in Phase}
    assert {phase: count for phase, count in counts.items() if count} == {
        "Pending": 1, "Running": 1, "Succeeded": 1, "Failed": 1,
    }  # fmt: skip


START = "2026-01-01T00:00:00Z"


def waiting(name: str, created: str = START, **status: object) -> dict[str, object]:
    body = job_body(name, uid=name, status=status)
    body["metadata"]["creationTimestamp"] = created
    return body


def test_waiting_jobs_are_counted_by_reason_with_the_longest_wait() -> None:
    cache, registry = Cache(CONFIG), CollectorRegistry()
    jobs = JobMetrics(registry, 10, lambda: datetime(2026, 1, 1, 1, tzinfo=UTC))
    jobs.set_jobs(cache.summaries)

    def ready(reason: str) -> list[dict[str, str]]:
        return [{"type": "Ready", "status": "False", "reason": reason}]

    def longest() -> float | None:
        name = "batchinference_longest_wait_seconds"
        return registry.get_sample_value(name, {"namespace": "team"})

    cache.set_job(waiting("running", phase="Running", conditions=ready("Running"), devices=8))
    cache.set_job(waiting("paused", phase="Suspended", conditions=ready("Suspended")))
    assert longest() == 0
    resumed = {"type": "Suspended", "status": "False", "lastTransitionTime": "2026-01-01T00:40:00Z"}
    conditions = [*ready("Unschedulable"), resumed]
    cache.set_job(waiting("resumed", phase="Pending", conditions=conditions))
    assert longest() == 20 * 60
    retried = {"number": 1, "outcome": "Failed", "completionTime": "2026-01-01T00:30:00Z"}
    cache.set_job(
        waiting("retried", phase="Retrying", conditions=ready("Retrying"), attempts=[retried])
    )
    assert longest() == 30 * 60
    cache.set_job(waiting("new", created="2026-01-01T00:15:00Z"))
    assert longest() == 45 * 60

    def count(reason: str) -> float | None:
        labels = {"namespace": "team", "reason": reason}
        return registry.get_sample_value("batchinference_waiting_jobs", labels)

    reasons = ("Unschedulable", "Retrying", "Pending", "Running", "Suspended")
    assert [count(reason) for reason in reasons] == [1, 1, 1, None, None]
    assert registry.get_sample_value("batchinference_devices", {"namespace": "team"}) == 8


def test_metric_names_follow_prometheus_conventions() -> None:
    for family in Metrics().registry.collect():
        if family.name.startswith("process_"):
            continue
        assert re.fullmatch(r"batchinference_[a-z_]+", family.name)
        assert family.documentation.endswith(".")
        if family.type == "histogram":
            assert family.name.endswith("_seconds")


@in_virtual_time
async def test_metrics_have_no_label_per_job(harness: Harness) -> None:
    """Each job name would create a time series that is never removed."""
    async with harness.recorded_operator() as metrics:
        for number in range(20):
            harness.cluster.apply(f"unmistakable-{number}")
        await harness.start_job()
    exposed = str([list(family.samples) for family in metrics.registry.collect()])
    assert "unmistakable" not in exposed
