"""Requeue intervals of running jobs. An event may trigger a reconcile earlier."""

from __future__ import annotations

from datetime import datetime

from batchinference_operator.reconcile.attempt_end import POLL_SECONDS
from batchinference_operator.reconcile.state import Observed
from batchinference_operator.status.ray_job import RayJobView
from batchinference_operator.status.timestamps import seconds_since

POLLS_PER_SECOND = 100.0
"""The rate limit of driver polls. With more drivers, each driver is polled less often."""
IDLE_SECONDS = 30.0
"""How often a job without changes is reconciled. An answer of its driver triggers a reconcile
earlier."""
QUEUED_AFTER_SECONDS = 5.0
"""Minimum age of a RayJob for which Kueue reports why it is queued."""
QUEUED_SECONDS = 120.0
"""How often the operator reads from Kueue why a RayJob is queued."""
NO_PODS_SECONDS = 10.0
"""Interval between reconciles of a job whose cluster has no pods yet. Possibly only Events contain
the reason."""
WATCHED_SECONDS = 3600.0
"""How often a job is reconciled that waits for KubeRay to create its cluster. The watches report
its changes, and there may be thousands of such jobs."""


def requeue_after(observed: Observed, ray_job: RayJobView, now: datetime) -> float:
    """Return the seconds until the next reconcile."""
    if ray_job.suspended:  # Kueue has no reason yet for a RayJob that was just created
        new = seconds_since(ray_job.created_at, now) < QUEUED_AFTER_SECONDS
        return POLL_SECONDS if new else QUEUED_SECONDS
    if not ray_job.driver_started and not observed.pods:
        return NO_PODS_SECONDS if ray_job.awaiting_pods else WATCHED_SECONDS
    return IDLE_SECONDS


def poll_interval(drivers: int) -> float:
    """Return the seconds between two polls of a driver that answers, for this number of drivers."""
    return max(POLL_SECONDS, drivers / POLLS_PER_SECOND)
