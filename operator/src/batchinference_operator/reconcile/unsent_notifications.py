"""Decides whether the notifications about the end of a job are sent, and records the result.

The condition Notified is written after the notifications were sent. If the operator stops in
between, the notifications are sent again, with the same ids.
"""

from dataclasses import replace
from datetime import datetime

from pydantic import TypeAdapter, ValidationError

from batchinference.spec.notifications import EndedJob, Notification
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.observed_and_actions import Actions, Observed
from batchinference_operator.status.conditions import (
    NOTIFIED,
    Summary,
    conditions_of,
    find_condition,
    is_condition_true,
)
from batchinference_operator.status.timestamps import to_rfc3339

_NOTIFICATIONS = TypeAdapter(list[Notification])


def ended_job(job: JobView) -> EndedJob:
    """Return what the notifications about the end of a job say."""
    status, succeeded = job.status, is_condition_true(job.status, "Complete")
    condition = find_condition(status, "Complete" if succeeded else "Failed")
    completed = status.get("completionTime")
    return EndedJob(
        id=f"{job.uid}/{completed}",
        name=job.name,
        succeeded=succeeded,
        namespace=job.namespace,
        reason=None if succeeded else condition.get("reason"),
        message=condition.get("message"),
        output=status.get("output"),
        start_time=status.get("startTime"),
        completion_time=completed,
        counts=status.get("counts", {}),
    )


def unsent_notifications(job: JobView) -> list[Notification]:
    """Return the notifications about the end of a job that its status does not record yet."""
    if not (job.finished and job.managed) or find_condition(job.status, NOTIFIED):
        return []
    try:
        notifications = _NOTIFICATIONS.validate_python(job.spec.get("notifications", []))
    except ValidationError:  # the condition Failed says why
        return []
    return ended_job(job).notifications_to_send(notifications)


def record_notifications(actions: Actions, observed: Observed, now: datetime) -> Actions:
    """Return the actions. If needed, they also send the job's notifications or write the result."""
    job, results = observed.job, observed.notified
    if not unsent_notifications(job):
        return actions
    if results is None:
        return replace(actions, notify=True)
    failed = any(results.values())
    message = "; ".join(f"{name}: {problem or 'sent'}" for name, problem in results.items())
    reason = "NotificationFailed" if failed else "Sent"
    added = conditions_of(
        {NOTIFIED: not failed}, Summary(reason, message), [], job.generation, to_rfc3339(now)
    )
    status = actions.status or job.status
    conditions = [*status.get("conditions", []), *added]
    return replace(actions, status={**status, "conditions": conditions}, requeue_after=0)
