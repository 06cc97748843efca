"""Computes the backoff between two attempts."""

from __future__ import annotations

from datetime import datetime

from batchinference.spec.durations import seconds_of
from batchinference.spec.lifecycle import Backoff
from batchinference.spec.phases import Phase
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.status.timestamps import seconds_since


def backoff_seconds(backoff: Backoff, failures: int) -> float:
    """Return the backoff in seconds before the attempt after this number of failures."""
    longest = seconds_of(backoff.max)
    return float(min(seconds_of(backoff.initial) * 2 ** min(failures - 1, 32), longest))


def backoff_left(job: JobView, now: datetime) -> float:
    """Return the seconds until the next attempt may start; 0 for a resumed job."""
    resumed = job.status.get("phase") in (Phase.SUSPENDING, Phase.SUSPENDED)
    if resumed or "nextAttemptTime" not in job.status:
        return 0.0
    return -seconds_since(job.status["nextAttemptTime"], now)
