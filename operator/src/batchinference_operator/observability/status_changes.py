"""Publishes the changes of a job's status as metrics and Events."""

import logging

from batchinference_operator.observability.event_recorder import EventRecorder
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.status.attempts import attempt_number
from batchinference_operator.status.job_events import events_between

logger = logging.getLogger("batchinference.operator")


def publish_changes(recorder: EventRecorder, before: JobView, job: JobView) -> None:
    """Publish the changes between two statuses of a job. Both statuses come from the cache, because
    the response to a write may be lost. A status that a user has written, such as a failed attempt
    without a cause, must not prevent a reconcile."""
    try:
        recorder.metrics.jobs.record_status_change(job.namespace, before.status, job.status)
        events = events_between(before.status, job.status)
        recorder.record(job, attempt_number(job.status), events)
    except Exception:
        logger.exception("a change of the status is not published")
