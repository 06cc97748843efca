"""Decides what it means that a driver does not answer, and whether it has ended."""

from datetime import datetime

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.observed_and_actions import Observed
from batchinference_operator.status.conditions import Summary, Waiting, find_condition
from batchinference_operator.status.phase import DRIVER
from batchinference_operator.status.ray_job_view import RayJobView
from batchinference_operator.status.timestamps import seconds_since

DRIVER_START_SECONDS = 60.0
"""Seconds from the start of a driver during which its silence is not reported."""

REPORT_GRACE_SECONDS = 60.0
"""Seconds for which the operator waits for the final report after the end of a RayJob."""


def must_poll_driver(observed: Observed) -> bool:
    """Return whether the driver must be polled for its report."""
    ray_job = observed.running_ray_job
    return ray_job is not None and ray_job.driver_started and not observed.job.deleting


def driver_ended(observed: Observed) -> bool:
    """Return whether a report or a succeeded RayJob says that the driver has ended.

    After this end, `suspend` has no effect. A failure while Kueue suspends the RayJob is not an
    end, because Kueue may have caused the failure by deleting the pods.
    """
    ray_job, report = observed.running_ray_job, observed.report
    if ray_job is not None and ray_job.succeeded:
        return True
    if report is None or not report.state.ended:
        return False
    return report.state == JobState.SUCCEEDED or ray_job is None or not ray_job.suspended


def awaits_report(observed: Observed, ray_job: RayJobView, now: datetime) -> bool:
    """Return whether the final report of an ended RayJob may still arrive. A silent driver is
    awaited until it was polled, and until REPORT_GRACE_SECONDS after the end."""
    if not driver_unreachable(observed, ray_job):
        return False
    # `ended_at` is untrusted and may be in the future
    since = abs(seconds_since(ray_job.ended_at, now))
    return observed.answer is None or since < REPORT_GRACE_SECONDS


def driver_unreachable(observed: Observed, ray_job: RayJobView) -> bool:
    """Return whether a driver has started, but its last answer is missing or too old."""
    return ray_job.driver_started and not observed.driver_reached


def driver_starting(ray_job: RayJobView, now: datetime) -> bool:
    """Return whether `driver_started_at` is unknown, or less than DRIVER_START_SECONDS ago."""
    start = ray_job.driver_started_at
    return not start or seconds_since(start, now) < DRIVER_START_SECONDS


def driver_problem(observed: Observed, ray_job: RayJobView, now: datetime) -> dict[str, str]:
    """Return why a driver does not answer, under the key DRIVER; empty if there is no problem. A
    starting driver has no problem for DRIVER_START_SECONDS, except if it rejects the token."""
    answer = observed.answer
    if answer is None or not driver_unreachable(observed, ray_job):
        return {}
    if driver_starting(ray_job, now) and not answer.unauthorized:
        return {}
    return {DRIVER: answer.problem or "it does not answer"}


def with_cause_of_silence(observed: Observed, summary: Summary) -> Summary:
    """Return the summary. If its reason is DriverSilent, a more exact reason may replace it.

    The reason becomes DriverUnauthorized if the driver rejects the token. If the driver has not
    been polled since the operator started, the reason and the message in the status are kept.
    """
    if summary.reason != Waiting.DRIVER_SILENT:
        return summary
    if observed.answer is not None and observed.answer.unauthorized:
        return Summary(Waiting.DRIVER_UNAUTHORIZED, summary.message)
    ready = find_condition(observed.job.status, "Ready")
    if observed.answer is None and ready:
        return Summary(ready["reason"], ready["message"])
    return summary
