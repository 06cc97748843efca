"""Decides whether to poll the driver for its report, and how long a report counts."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.driver_silence import driver_unreachable
from batchinference_operator.reconcile.ray_jobs_of_job import running_ray_job
from batchinference_operator.reconcile.state import Observed
from batchinference_operator.status.ray_job import RayJobView
from batchinference_operator.status.timestamps import seconds_since

REPORT_GRACE_SECONDS = 60.0
"""Seconds for which the operator waits for the last report of an ended RayJob."""
REPORT_MAX_AGE_SECONDS = 300.0
"""Maximum age of a report. With many slow drivers in a namespace, polls are less frequent."""


def polls_driver(observed: Observed) -> bool:
    """Return whether the driver must be polled for its report."""
    ray_job = running_ray_job(observed)
    return ray_job is not None and ray_job.driver_started and not observed.job.deleting


def driver_ended(observed: Observed) -> bool:
    """Return whether the driver has sent its final report or is known to have succeeded.

    If so, `suspend` no longer has an effect.
    """
    ray_job, report = running_ray_job(observed), observed.report
    if ray_job is not None and ray_job.succeeded:
        return True
    if report is None or not report.state.ended:
        return False
    # a failure may be the result of a preemption by Kueue, which deletes the pods
    return report.state == JobState.SUCCEEDED or ray_job is None or not ray_job.suspended


def without_old_report(observed: Observed) -> Observed:
    """Return the observation without a report older than REPORT_MAX_AGE_SECONDS."""
    if observed.report_age < REPORT_MAX_AGE_SECONDS:
        return observed
    return replace(observed, report=None, driver_reached=False)


def awaits_report(observed: Observed, ray_job: RayJobView, now: datetime) -> bool:
    """Return whether the driver's last report may still arrive.

    True until the driver was polled once, and for REPORT_GRACE_SECONDS after its end.
    """
    if not driver_unreachable(observed, ray_job):
        return False
    # users can write the status of a RayJob, so its end may be in the future
    since = abs(seconds_since(ray_job.ended_at, now))
    return not observed.driver_polled or since < REPORT_GRACE_SECONDS
