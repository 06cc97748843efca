"""A RayJob that Kueue queues, before its first admission or again after a preemption.

This is not a failure. While the RayJob is queued, the report of its driver counts only if it says
that the output is complete, because Kueue deletes the pods. Deadlines start when the attempt is
admitted, and admission starts the attempt over.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.clock import stamp
from batchinference_operator.reconcile.model import Observed
from batchinference_operator.status.attempts import admitted, queued
from batchinference_operator.status.observations import RayJobView


def is_gated(observed: Observed) -> bool:
    """Return whether Kueue gates pods of an attempt that has not finished a row.

    After the first row, gated pods come from the scaling of an elastic job, which continues without
    them.
    """
    waits = "progressTime" not in observed.job.status
    return waits and any(pod.gated for pod in observed.pods_of_attempt)


def with_queue(observed: Observed, seen: RayJobView, now: datetime) -> Observed:
    """Return the observation with the time at which the attempt was queued or admitted."""
    job, report = observed.job, observed.report
    if not seen.held:
        change = queued if is_gated(observed) else admitted
        return replace(observed, job=replace(job, status=change(job.status, stamp(now))))
    if report is not None and report.state != JobState.SUCCEEDED:
        report = None
    waits = replace(job, status=queued(job.status, stamp(now)))
    return replace(observed, job=waits, report=report)
