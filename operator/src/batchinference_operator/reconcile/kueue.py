"""Handles a RayJob that Kueue queues, before its first admission or after a preemption.

Queueing is not a failure. While the RayJob is queued, a failure in the driver's report is ignored,
because Kueue deletes the pods. On admission, the attempt starts over and its deadlines start.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.state import Observed
from batchinference_operator.status.attempts import mark_admitted, mark_queued
from batchinference_operator.status.ray_job import RayJobView
from batchinference_operator.status.timestamps import to_rfc3339


def is_gated(observed: Observed) -> bool:
    """Return whether pods of an attempt are gated before its first finished row.

    After the first row, gated pods are additional pods of an elastic job, which continues without
    them.
    """
    waits = "progressTime" not in observed.job.status
    return waits and any(pod.gated for pod in observed.pods_of_attempt)


def track_admission(observed: Observed, ray_job: RayJobView, now: datetime) -> Observed:
    """Return the observation with the time at which the attempt was queued or admitted."""
    job, report = observed.job, observed.report
    if not ray_job.suspended:
        change = mark_queued if is_gated(observed) else mark_admitted
        return replace(observed, job=replace(job, status=change(job.status, to_rfc3339(now))))
    if report is not None and report.state != JobState.SUCCEEDED:
        report = None
    waits = replace(job, status=mark_queued(job.status, to_rfc3339(now)))
    return replace(observed, job=waits, report=report)
