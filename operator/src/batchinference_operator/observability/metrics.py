"""All Prometheus metrics of the operator: those of jobs, and those of the operator itself."""

from __future__ import annotations

import re

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from batchinference_operator.observability.job_metrics import MAX_NAMESPACES, JobMetrics

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_RESOURCE_PATH = re.compile(
    r"/(?:api|apis/[^/]+)/[^/]+(?:/namespaces/[^/]+)?"
    r"/(?P<plural>[a-z]+)(?P<name>/[^/]+(?P<subresource>/[a-z]+)?)?"
)
_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


class Metrics:
    """All metrics of the operator, which docs/operations.md describes."""

    def __init__(self, max_namespaces: int = MAX_NAMESPACES) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # one series less per counter
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.queue_depth = self._gauge(
            "batchinference_queue_depth", "Keys in the work queue of jobs."
        )
        self.reconcile_seconds = self._histogram(
            "batchinference_reconcile_seconds",
            "Duration of a reconcile, with its requests to the API server.",
        )
        self.reconcile_errors = self._counter(
            "batchinference_reconcile_errors",
            "Reconciles that failed and are retried: conflict, refused, unreachable (the API "
            "server is unavailable or overloaded), or error.",
            "kind",
        )
        for kind in ("conflict", "refused", "unreachable", "error"):
            self.reconcile_errors.labels(kind)  # Prometheus sees no increase in a new series
        self.api_requests = self._counter(
            "batchinference_api_requests",
            "Requests to the API server by verb, resource and status code. The code is `none` if "
            "the server did not answer.",
            *("verb", "resource", "code"),
        )
        self.api_request_seconds = self._histogram(
            "batchinference_api_request_seconds",
            "Response time of the API server; for a watch, the time until it starts.",
            *("verb", "resource"),
        )
        self.jobs = JobMetrics(self.registry, max_namespaces)
        self._add_result_metrics()

    def _add_result_metrics(self) -> None:
        """Add the metrics that count results of operations."""
        self.status_writes = self._counter(
            "batchinference_status_writes",
            "Status writes by result: written, unchanged, deferred to a later reconcile, "
            "conflict, or gone with its job.",
            "result",
        )
        self.driver_polls = self._counter(
            "batchinference_driver_polls",
            "Polls of drivers: answered, slow (answered after more than a second), unauthorized "
            "(the driver rejects the operator's token), or failed.",
            "result",
        )
        self.events = self._counter(
            "batchinference_events",
            "Events about jobs and schedules: posted, repeated (added to the count of an earlier "
            "Event), or dropped.",
            "result",
        )
        self.leader = self._gauge(
            "batchinference_leader", "1 for the leader, 0 for the other replicas."
        )
        self.namespaces_unwatched = self._gauge(
            "batchinference_namespaces_unwatched",
            "Watched namespaces to which the operator has no access.",
        )

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        return Counter(name, documentation, labels, registry=self.registry)

    def _gauge(self, name: str, documentation: str) -> Gauge:
        return Gauge(name, documentation, registry=self.registry)

    def _histogram(self, name: str, documentation: str, *labels: str) -> Histogram:
        return Histogram(name, documentation, labels, buckets=_BUCKETS, registry=self.registry)

    def record_request(self, method: str, path: str, code: int | None, seconds: float) -> None:
        """Record a finished request to the API server; `code` is None if there was no answer."""
        verb, resource = verb_and_resource(method, path)
        self.api_requests.labels(verb, resource, "none" if code is None else code).inc()
        self.api_request_seconds.labels(verb, resource).observe(seconds)


def verb_and_resource(method: str, path: str) -> tuple[str, str]:
    """Return the verb and the resource of a request as in an RBAC rule."""
    path, _, query = path.partition("?")
    match = _RESOURCE_PATH.fullmatch(path)
    if match is None:
        return "get", "discovery"
    if method == "GET" and not match["name"]:
        verb = "watch" if "watch=true" in query else "list"
    else:
        verb = _VERBS.get(method, "get")
    return verb, match["plural"] + (match["subresource"] or "")
