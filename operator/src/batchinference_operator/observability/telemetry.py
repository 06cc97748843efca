"""Publishes changes of jobs as metrics and Events."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from batchinference_operator.kube.errors import Conflict, Refused, Unreachable
from batchinference_operator.observability.event_recorder import EventRecorder
from batchinference_operator.observability.metrics import Metrics
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.status.attempts import attempt_number
from batchinference_operator.status.job_events import events_between

logger = logging.getLogger("batchinference.operator")


@dataclass
class Telemetry:
    """Updates the metrics, and passes Events to the recorder, if there is one."""

    metrics: Metrics = field(default_factory=Metrics)
    recorder: EventRecorder | None = None

    @contextmanager
    def measure_reconcile(self) -> Iterator[None]:
        """Measure the reconcile in the block: record its duration, and count its error, if any."""
        start = time.monotonic()
        try:
            yield
        except Exception as error:
            self.metrics.reconcile_errors.labels(_error_kind(error)).inc()
            raise
        finally:
            self.metrics.reconcile_seconds.observe(time.monotonic() - start)

    async def work(self) -> None:
        """Post Events until cancelled. Returns at once without a recorder."""
        if self.recorder is not None:
            await self.recorder.work()

    def publish_changes(self, before: JobView, job: JobView) -> None:
        """Publish the changes between two statuses of a job as metrics and Events. Both statuses
        come from the cache, because the response to a write may be lost. A status that a user has
        written, such as a failed attempt without a cause, must not prevent a reconcile."""
        try:
            self._publish(before, job)
        except Exception:
            logger.exception("a change of the status is not published")

    def _publish(self, before: JobView, job: JobView) -> None:
        self.metrics.jobs.record_status_change(job.namespace, before.status, job.status)
        if self.recorder is not None:
            events = events_between(before.status, job.status)
            self.recorder.record(job, attempt_number(job.status), events)

    def count_status_write(self, result: str) -> None:
        """Count a status write by its result, such as `written` or `conflict`."""
        self.metrics.status_writes.labels(result).inc()


def _error_kind(error: Exception) -> str:
    kinds = {Conflict: "conflict", Unreachable: "unreachable", Refused: "refused"}
    return next((name for kind, name in kinds.items() if isinstance(error, kind)), "error")
