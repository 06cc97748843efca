"""Decides when a running job is reconciled, and its driver polled, without an event."""

from datetime import datetime

from batchinference_operator.reconcile.kuberay_silence import (
    KUBERAY_SECONDS,
    kuberay_silent_seconds,
)
from batchinference_operator.reconcile.observed_and_actions import Observed
from batchinference_operator.status.ray_job_view import RayJobView
from batchinference_operator.status.timestamps import seconds_since

POLL_SECONDS = 2.0
"""Requeue interval while a change is expected, and minimum poll interval of drivers, in seconds."""

POLLS_PER_SECOND = 100.0
"""Maximum rate of driver polls. With many drivers, each driver is polled less often."""
IDLE_SECONDS = 30.0
"""Interval between reconciles of a job without events. Each answer of its driver is an event."""
QUEUED_SECONDS = 120.0
"""Interval of reading why Kueue queues a RayJob. Until there is a reason, the interval is the age
of the RayJob, up to this maximum."""
NO_PODS_SECONDS = 10.0
"""Interval of a job whose cluster has no pods. The reason may only be in Events, which the operator
does not watch."""
WATCHED_SECONDS = 3600.0
"""Interval of a job that waits for KubeRay to create its cluster. The interval is long, because
there may be thousands of such jobs, and watches report their changes."""


def requeue_after(observed: Observed, ray_job: RayJobView, now: datetime) -> float:
    """Return the seconds until the next reconcile."""
    if ray_job.suspended:  # Kueue has no reason yet for a RayJob that was just created
        age = seconds_since(ray_job.created_at, now)
        unexplained = ray_job.name not in observed.messages and age < QUEUED_SECONDS
        return max(POLL_SECONDS, age) if unexplained else QUEUED_SECONDS
    silent = kuberay_silent_seconds(ray_job, now)
    if 0 <= silent < KUBERAY_SECONDS:
        return KUBERAY_SECONDS - silent
    if not ray_job.driver_started and not observed.pods:
        return NO_PODS_SECONDS if ray_job.awaiting_pods else WATCHED_SECONDS
    return IDLE_SECONDS
