"""The Prometheus metrics of the operator: values and names."""

from __future__ import annotations

import re

import pytest

from batchinference.spec.causes import Cause
from batchinference.spec.phases import Phase
from batchinference.spec.report import JobState
from batchinference_operator.controller.cache import Cache
from batchinference_operator.controller.workqueue import WorkQueue
from batchinference_operator.kube.api import Conflict
from batchinference_operator.observability.metrics import Metrics, described
from support.operator.harness import Harness
from support.operator.objects import job_body
from support.operator.virtual_time import in_virtual_time


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"batchinference_{name}", labels) or 0.0


RAY_JOB = "/apis/ray.io/v1/namespaces/a/rayjobs/b"
JOBS = "/apis/batchinference.dev/v1alpha1/namespaces/a/batchinferences"


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
    assert described(method, path) == expected


def test_request_without_an_answer_is_counted() -> None:
    metrics = Metrics()
    metrics.record_request("GET", "/api/v1/pods", None, 30.0)
    labels = {"verb": "list", "resource": "pods"}
    assert value(metrics, "api_requests_total", **labels, code="none") == 1
    assert value(metrics, "api_request_seconds_sum", **labels) == 30


def test_every_cause_starts_at_zero() -> None:
    """Prometheus does not see an increase in a series that starts at 1."""
    registry, name = Metrics().registry, "batchinference_attempts_total"
    labels = [{"outcome": "Failed", "cause": cause.value} for cause in Cause]
    assert [one for one in labels if registry.get_sample_value(name, one) != 0] == []


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
    assert value(metrics, "attempts_total", outcome=state.value.capitalize(), cause=cause) == 1
    assert rows is None or value(metrics, "rows_finished_total") == rows
    written = value(metrics, "status_writes_total", result="written")
    assert written == harness.count("patch status")
    assert value(metrics, "reconcile_seconds_count") >= written
    assert value(metrics, "events_total", result="posted") == 2


@in_virtual_time
async def test_conflicts_are_counted(harness: Harness) -> None:
    conflicts = [Conflict("the object has been modified")]

    def stumble(call: str) -> None:
        if call == "patch status" and conflicts:
            raise conflicts.pop()

    harness.api.before = stumble
    async with harness.recorded_operator() as metrics:
        await harness.start_job()
    assert value(metrics, "reconcile_errors_total", kind="conflict") == 1
    assert value(metrics, "status_writes_total", result="conflict") == 1


def test_usage_counters_grow_by_the_difference_of_statuses() -> None:
    metrics = Metrics()
    first = {"gpuSeconds": 10, "cpuSeconds": 40, "progress": {"rows": 7}}
    metrics.record_status_change({}, first)
    metrics.record_status_change(first, {**first, "gpuSeconds": 25})
    assert value(metrics, "gpu_seconds_total") == 25
    assert value(metrics, "cpu_seconds_total") == 40
    assert value(metrics, "rows_finished_total") == 7


def ended(name: str, kind: str) -> dict[str, object]:
    conditions = [{"type": kind, "status": "True"}]
    return job_body(name, uid=name, status={"phase": kind, "conditions": conditions})


def test_jobs_are_counted_by_phase() -> None:
    cache, metrics = Cache(), Metrics()
    cache.set_job(job_body("new", uid="new"))
    cache.set_job(job_body("running", uid="running", status={"phase": "Running"}))
    cache.set_job(ended("good", "Complete"))
    cache.set_job(ended("bad", "Failed"))
    metrics.add_operator(WorkQueue[str](), cache.phases)
    counts = {phase.value: value(metrics, "jobs", phase=phase) for phase in Phase}
    assert {phase: count for phase, count in counts.items() if count} == {
        "Pending": 1, "Running": 1, "Succeeded": 1, "Failed": 1,
    }  # fmt: skip


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
    assert "team" not in exposed
