"""Decides what follows if a driver that has started does not answer."""

from __future__ import annotations

from datetime import datetime

from batchinference_operator.reconcile.state import Observed
from batchinference_operator.status.conditions import Summary, find_condition
from batchinference_operator.status.phase import DRIVER, DRIVER_SILENT
from batchinference_operator.status.ray_job import RayJobView
from batchinference_operator.status.timestamps import seconds_since

DRIVER_START_SECONDS = 60.0
"""Seconds after the start of a driver before the status reports that it does not answer."""


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
