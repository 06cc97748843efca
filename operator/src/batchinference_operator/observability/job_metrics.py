"""The metrics of jobs, with a limited number of series.

No metric has the name of a job as a label, because there are thousands of jobs.
"""

from __future__ import annotations

import sys
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from batchinference.spec.causes import Cause
from batchinference.spec.status import PROCESSING_PHASES, Phase
from batchinference.spec.warnings import WarningName
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.status.attempts import Attempt, last_attempt, newly_ended
from batchinference_operator.status.conditions import find_condition, is_condition_true
from batchinference_operator.status.job_status import Status
from batchinference_operator.status.ray_job_view import section
from batchinference_operator.status.timestamps import Clock, seconds_since, utc_now

_NOT_WAITING = {*PROCESSING_PHASES, Phase.SUSPENDED}


@dataclass(frozen=True, slots=True)
class JobSummary:
    """What the metrics show about a job."""

    namespace: str
    phase: str
    devices: int = 0
    """Number of devices that its pods have now."""
    waiting_since: str = ""
    """Since when the job waits; empty if it processes rows, is suspended or is finished."""
    reason: str = ""
    """Why it waits: the reason of its condition Ready; empty if it does not wait."""

    @classmethod
    def of(cls, job: JobView) -> JobSummary:
        """Return the summary of a job. Only an unfinished job has devices and a reason."""
        namespace = sys.intern(job.namespace)
        if job.finished:
            complete = is_condition_true(job.status, "Complete")
            return cls(namespace, Phase.SUCCEEDED if complete else Phase.FAILED)
        phase = str(job.status.get("phase", Phase.PENDING))
        devices = int(job.status.get("devices", 0))
        if phase in _NOT_WAITING:
            return cls(namespace, phase, devices)
        ready = find_condition(job.status, "Ready")
        reason = sys.intern(str(ready.get("reason", phase)))
        return cls(namespace, phase, devices, _waiting_since(job), reason)


def _waiting_since(job: JobView) -> str:
    """Return the latest of the times at which the job was created, was resumed or ended an attempt.
    All times have the same format, so they can be compared as strings."""
    resumed = find_condition(job.status, "Suspended").get("lastTransitionTime", "")
    ended = last_attempt(job.status).get("completionTime", "")
    return max(job.created_at, str(resumed), str(ended))


OTHER = "_other"
"""The label value for all values beyond the maximum number. No namespace can have this name."""
MAX_NAMESPACES = 100
MAX_REASONS = 100
_TOKENS = ("input", "cached", "output")
_FIELDS: dict[tuple[str, ...], tuple[str, str]] = {
    ("progress", "rows"): ("batchinference_rows_finished", "Rows that jobs have finished."),
    ("counts", "failed"): (
        "batchinference_rows_failed",
        "Rows that failed and have an error record.",
    ),
    ("deviceSeconds",): ("batchinference_device_seconds", "Device seconds that jobs have used."),
    ("cpuSeconds",): ("batchinference_cpu_seconds", "CPU seconds that jobs have used."),
}
"""The name and description of the counter for each of these fields of a status."""
_WARNING_NAMES = frozenset(name.value for name in WarningName)
_OUTCOMES = [("Succeeded", ""), ("Suspended", ""), *(("Failed", cause.value) for cause in Cause)]


class BoundedLabel:
    """Limits the number of values of a label: further values become OTHER."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.values: set[str] = set()

    def value(self, text: str) -> str:
        """Return the label value for a text: the text, or OTHER if there are too many values."""
        if text not in self.values and len(self.values) >= self._limit:
            text = OTHER
        self.values.add(text)
        return text


class JobMetrics(Collector):
    """Counts what jobs do, and computes gauges over all jobs when Prometheus scrapes them."""

    def __init__(
        self, registry: CollectorRegistry, max_namespaces: int, now: Clock = utc_now
    ) -> None:
        self._registry = registry
        self._now = now
        self._namespaces = BoundedLabel(max_namespaces)
        self._reasons = BoundedLabel(MAX_REASONS)
        self._jobs: Callable[[], Iterable[JobSummary]] = tuple
        self._add_counters()

    def _add_counters(self) -> None:
        self._attempts = self._counter(
            "batchinference_attempts",
            "Attempts that ended, by outcome (Succeeded, Failed or Suspended) and, if they "
            "failed, by cause.",
            *("outcome", "cause"),
        )
        self._attempt_device_seconds = self._counter(
            "batchinference_attempt_device_seconds",
            "Device seconds of attempts that ended, by outcome and cause.",
            *("outcome", "cause"),
        )
        self._of_fields = {path: self._counter(*about) for path, about in _FIELDS.items()}
        self._tokens = self._counter(
            "batchinference_tokens",
            "Tokens that models have used for finished rows, by kind: input, cached (a part of "
            "the input), and output.",
            "kind",
        )
        self._warnings = self._counter(
            "batchinference_warnings",
            "Rows and files that a job has left out, cut or changed, by the name of the warning.",
            "name",
        )

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        return Counter(name, documentation, ["namespace", *labels], registry=self._registry)

    def set_jobs(self, jobs: Callable[[], Iterable[JobSummary]]) -> None:
        """Set the function that returns all jobs, and register the gauges."""
        self._jobs = jobs
        self._registry.register(self)

    def record_status_change(self, namespace: str, before: Status, after: Status) -> None:
        """Increase the counters by the difference between two statuses of a job."""
        label = self._namespace_label(namespace)
        for path, counter in self._counters_of_fields(label).items():
            counter.inc(max(0, _counter_value(after, *path) - _counter_value(before, *path)))
        counted, known = _warnings_by_name(after), _warnings_by_name(before)
        for name in counted:
            self._warnings.labels(label, name).inc(max(0, counted[name] - known[name]))
        for attempt in newly_ended(before, after):
            outcome = _outcome_of(attempt)
            self._attempts.labels(label, *outcome).inc()
            self._attempt_device_seconds.labels(label, *outcome).inc(
                attempt.get("deviceSeconds", 0)
            )

    def _counters_of_fields(self, label: str) -> dict[tuple[str, ...], Counter]:
        """Return the counters of a namespace by the path of the field that they count."""
        counters = {path: counter.labels(label) for path, counter in self._of_fields.items()}
        for kind in _TOKENS:
            counters["counts", f"{kind}Tokens"] = self._tokens.labels(label, kind)
        return counters

    def _namespace_label(self, namespace: str) -> str:
        """Return the label value of a namespace. If it is new, create its counters with value 0. If
        a series began at 1 with the first failure, Prometheus would see no increase."""
        known = len(self._namespaces.values)
        label = self._namespaces.value(namespace)
        if len(self._namespaces.values) > known:
            self._counters_of_fields(label)
            for name in WarningName:
                self._warnings.labels(label, name.value)
            for outcome in _OUTCOMES:
                self._attempts.labels(label, *outcome)
                self._attempt_device_seconds.labels(label, *outcome)
        return label

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges. A namespace without jobs keeps its series with the value 0."""
        phases, waiting = Counts[tuple[str, ...]](), Counts[tuple[str, ...]]()
        devices = Counts[str]()
        oldest: dict[str, str] = {}
        for job in self._jobs():
            label = self._namespace_label(job.namespace)
            phases[label, job.phase] += 1
            devices[label] += job.devices
            if job.waiting_since:
                waiting[label, self._reasons.value(job.reason)] += 1
                oldest[label] = min(oldest.get(label, job.waiting_since), job.waiting_since)
        labels, now = sorted(self._namespaces.values), self._now()
        yield _gauge(
            "batchinference_jobs",
            "Jobs by phase. A job before its first reconcile counts as Pending.",
            ("namespace", "phase"),
            {(label, phase.value): phases[label, phase] for label in labels for phase in Phase},
        )
        yield _gauge(
            "batchinference_waiting_jobs",
            "Unfinished jobs that process no rows and are not suspended, by the reason of their "
            "condition Ready.",
            ("namespace", "reason"),
            waiting,
        )
        yield _gauge(
            "batchinference_longest_wait_seconds",
            "Seconds that the longest-waiting job of `batchinference_waiting_jobs` has waited "
            "since it was created, resumed, or ended an attempt.",
            ("namespace",),
            {
                (label,): max(0.0, seconds_since(oldest[label], now)) if label in oldest else 0
                for label in labels
            },
        )
        yield _gauge(
            "batchinference_devices",
            "Devices, such as GPUs, that the pods of jobs have now.",
            ("namespace",),
            {(label,): devices[label] for label in labels},
        )


def _gauge(
    name: str, documentation: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


def _outcome_of(attempt: Attempt) -> tuple[str, str]:
    """Return the labels for the outcome and the cause of an attempt. Unknown values, which users
    may have written into the status, are counted as OTHER."""
    outcome = attempt["outcome"], attempt.get("cause", "")
    return outcome if outcome in _OUTCOMES else (OTHER, OTHER)


def _warnings_by_name(status: Status) -> Counts[str]:
    """Return the number of rows or files with each warning. Unknown names, which are untrusted, are
    counted as OTHER."""
    counts = Counts[str]()
    for warning in status.get("warnings", ()):
        name = warning["name"] if warning["name"] in _WARNING_NAMES else OTHER
        counts[name] += warning["count"]
    return counts


def _counter_value(status: Status, *path: str) -> int:
    return int(section(status, *path[:-1]).get(path[-1], 0))
