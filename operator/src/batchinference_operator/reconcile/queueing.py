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


def with_queue(observed: Observed, seen: RayJobView, now: datetime) -> Observed:
    """What was observed, with the time since which the attempt waits, or goes on."""
    job, report = observed.job, observed.report
    if not seen.held:
        return replace(observed, job=replace(job, status=admitted(job.status, stamp(now))))
    if report is not None and report.state != JobState.SUCCEEDED:
        report = None
    waits = replace(job, status=queued(job.status, stamp(now)))
    return replace(observed, job=waits, report=report)
