"""What Prometheus is told is what happened, under names as it wants them."""

from __future__ import annotations

import re

import pytest

from batchinference.spec.causes import Cause
from batchinference.spec.phases import Phase
from batchinference.spec.report import JobState
from batchinference_operator.runtime.cache import Cache
from batchinference_operator.runtime.gateway import Conflict
from batchinference_operator.runtime.metrics import Metrics, described
from batchinference_operator.runtime.queue import KeyedQueue
from support.operator.harness import Harness
from support.operator.objects import job_body
from support.operator.virtual_time import in_virtual_time


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"batchinference_{name}", labels) or 0.0


REQUESTS = {
    "/apis/ray.io/v1/namespaces/a/rayjobs": ("list", "rayjobs"),
    "/apis/ray.io/v1/rayjobs?watch=true&timeoutSeconds=60": ("watch", "rayjobs"),
    "/apis/ray.io/v1/namespaces/a/rayjobs/name": ("get", "rayjobs"),
    "/api/v1/namespaces/a/events?fieldSelector=x": ("list", "events"),
    "/api/v1/pods?limit=500": ("list", "pods"),
    "/apis/batchinference.dev/v1alpha1/namespaces/a/batchinferences/b.c/status": (
        "get",
        "batchinferences/status",
    ),
    "/apis": ("get", "discovery"),
    "/apis/ray.io/v1": ("get", "discovery"),
    "/version": ("get", "discovery"),
}


@pytest.mark.parametrize(("path", "expected"), REQUESTS.items(), ids=REQUESTS)
def test_a_request_is_counted_as_roles_name_it(path: str, expected: tuple[str, str]) -> None:
    assert described("GET", path) == expected


@pytest.mark.parametrize(
    ("method", "verb"), [("POST", "create"), ("PATCH", "patch"), ("DELETE", "delete")]
)
def test_what_changes_something_has_its_own_verb(method: str, verb: str) -> None:
    path = "/apis/ray.io/v1/namespaces/a/rayjobs/b"
    assert described(method, path) == (verb, "rayjobs")


def test_a_request_without_an_answer_is_counted_too() -> None:
    metrics = Metrics()
    metrics.asked("GET", "/api/v1/pods", None, 30.0)
    labels = {"verb": "list", "resource": "pods"}
    assert value(metrics, "api_requests_total", **labels, code="none") == 1
    assert value(metrics, "api_request_seconds_sum", **labels) == 30


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_is_at_nought_before_its_first_attempt(cause: Cause) -> None:
    """Prometheus sees no increase in a series that begins at one."""
    labels = {"outcome": "Failed", "cause": cause.value}
    registry = Metrics().registry
    assert registry.get_sample_value("batchinference_attempts_total", labels) == 0


@in_virtual_time
async def test_metrics_of_a_successful_job() -> None:
    harness = Harness()
    async with harness.recorded_operator() as metrics:
        await harness.finish_job()
    assert value(metrics, "attempts_total", outcome="Succeeded", cause="") == 1
    assert value(metrics, "rows_finished_total") == 100
    written = value(metrics, "status_writes_total", result="written")
    assert written == harness.count("patch status")
    assert value(metrics, "reconcile_seconds_count") >= written
    assert value(metrics, "events_total", result="posted") == 2


@in_virtual_time
async def test_metrics_of_a_failed_job() -> None:
    harness = Harness()
    async with harness.recorded_operator() as metrics:
        await harness.finish_job(JobState.FAILED)
    assert value(metrics, "attempts_total", outcome="Failed", cause="Application") == 1


@in_virtual_time
async def test_conflicts_are_counted() -> None:
    harness = Harness()
    conflicts = [Conflict("the object has been modified")]

    def stumble(call: str) -> None:
        if call == "patch status" and conflicts:
            raise conflicts.pop()

    harness.gateway.before = stumble
    async with harness.recorded_operator() as metrics:
        await harness.start_job()
    assert value(metrics, "reconcile_errors_total", kind="conflict") == 1
    assert value(metrics, "status_writes_total", result="conflict") == 1


def test_usage_counters_grow_by_the_difference_of_statuses() -> None:
    metrics = Metrics()
    metrics.happened({}, {"gpuSeconds": 10, "cpuSeconds": 40, "progress": {"rows": 7}})
    metrics.happened(
        {"gpuSeconds": 10, "cpuSeconds": 40, "progress": {"rows": 7}},
        {"gpuSeconds": 25, "cpuSeconds": 40, "progress": {"rows": 7}},
    )
    assert value(metrics, "gpu_seconds_total") == 25
    assert value(metrics, "cpu_seconds_total") == 40
    assert value(metrics, "rows_finished_total") == 7


def ended(name: str, kind: str) -> dict[str, object]:
    conditions = [{"type": kind, "status": "True"}]
    return job_body(name, uid=name, status={"phase": kind, "conditions": conditions})


def test_jobs_are_counted_by_phase_and_those_at_rest_too() -> None:
    cache, metrics = Cache(), Metrics()
    cache.set_job(job_body("new", uid="new"))
    cache.set_job(job_body("running", uid="running", status={"phase": "Running"}))
    cache.set_job(ended("good", "Complete"))
    cache.set_job(ended("bad", "Failed"))
    metrics.of_operator(KeyedQueue[str](), cache)
    counts = {phase.value: value(metrics, "jobs", phase=phase) for phase in Phase}
    assert {phase: count for phase, count in counts.items() if count} == {
        "Pending": 1, "Running": 1, "Succeeded": 1, "Failed": 1,
    }  # fmt: skip


def test_metric_names_follow_prometheus_conventions() -> None:
    for family in Metrics().registry.collect():
        assert re.fullmatch(r"batchinference_[a-z_]+", family.name)
        assert family.documentation.endswith(".")
        if family.type == "histogram":
            assert family.name.endswith("_seconds")


@in_virtual_time
async def test_metrics_have_no_label_per_job() -> None:
    """Each name would be a time series for ever."""
    harness = Harness()
    async with harness.recorded_operator() as metrics:
        for number in range(20):
            harness.cluster.apply(f"unmistakable-{number}")
        await harness.start_job()
    exposed = str([list(family.samples) for family in metrics.registry.collect()])
    assert "unmistakable" not in exposed
    assert "team" not in exposed
