"""A RayJob that Kueue holds back, at first or again later.

Nothing is wrong with it meanwhile: what a driver says whose pods are taken away counts only where
it is that the output is complete, and deadlines begin when the attempt is admitted, which starts it
anew.
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
    """Whether Kueue holds back pods of an attempt that has not finished a row. Later ones are
    gated when an elastic job scales, and then it goes on without them."""
    waits = "progressTime" not in observed.job.status
    return waits and any(pod.gated for pod in observed.pods_of_attempt)


def with_queue(observed: Observed, seen: RayJobView, now: datetime) -> Observed:
    """What was observed, with the time since which the attempt waits, or goes on."""
    job, report = observed.job, observed.report
    if not seen.held:
        change = queued if is_gated(observed) else admitted
        return replace(observed, job=replace(job, status=change(job.status, stamp(now))))
    if report is not None and report.state != JobState.SUCCEEDED:
        report = None
    waits = replace(job, status=queued(job.status, stamp(now)))
    return replace(observed, job=waits, report=report)
