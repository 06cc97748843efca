"""Decides whether to poll the driver for its report, and how long a report counts."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.ray_jobs_of_job import running_ray_job
from batchinference_operator.reconcile.state import Observed
from batchinference_operator.status.conditions import Summary, find_condition
from batchinference_operator.status.phase import DRIVER, DRIVER_SILENT
from batchinference_operator.status.ray_job import RayJobView
from batchinference_operator.status.timestamps import seconds_since

DRIVER_START_SECONDS = 60.0
"""Seconds after the start of a driver before the status reports that it does not answer."""

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


def driver_unreachable(observed: Observed, ray_job: RayJobView) -> bool:
    """Return whether a driver that has started did not answer the last poll."""
    return ray_job.driver_started and not observed.driver_reached


def driver_starting(ray_job: RayJobView, now: datetime) -> bool:
    """Return whether the driver has not started, or has started within DRIVER_START_SECONDS."""
    start = ray_job.driver_started_at
    return not start or seconds_since(start, now) < DRIVER_START_SECONDS


def driver_problem(observed: Observed, ray_job: RayJobView, now: datetime) -> dict[str, str]:
    """Return the problem of a driver that was polled and did not answer, by DRIVER.

    It is reported after DRIVER_START_SECONDS, because a starting driver may not answer yet. If the
    driver rejects the operator's token, it is reported at once.
    """
    if not (observed.driver_polled and driver_unreachable(observed, ray_job)):
        return {}
    if driver_starting(ray_job, now) and not observed.driver_unauthorized:
        return {}
    return {DRIVER: observed.driver_problem or "it does not answer"}


def with_cause_of_silence(observed: Observed, summary: Summary) -> Summary:
    """Return the summary of a silent driver with the reason DriverSilent or DriverUnauthorized.

    Other summaries are returned unchanged. Before the first poll of a new operator, the reason is
    that of the last status.
    """
    if summary.reason != DRIVER_SILENT:
        return summary
    if observed.driver_unauthorized:
        return Summary("DriverUnauthorized", summary.message)
    ready = find_condition(observed.job.status, "Ready")
    if not observed.driver_polled and ready is not None:
        return Summary(ready["reason"], ready["message"])
    return summary
