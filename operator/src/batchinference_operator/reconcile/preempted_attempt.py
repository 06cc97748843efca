"""Ends the attempt of a preempted job and requeues the job."""

from __future__ import annotations

from datetime import datetime

from batchinference.spec.causes import Cause
from batchinference.spec.phases import Phase
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.state import Actions, Observed
from batchinference_operator.status.attempts import end_attempt, is_running, last_attempt
from batchinference_operator.status.conditions import Summary
from batchinference_operator.status.job_status import Status, StatusUpdate, without
from batchinference_operator.status.timestamps import to_rfc3339

PREEMPTED = Cause.PREEMPTED.value
"""The outcome of a preempted attempt, and the reason while the job waits for the next one."""


def preempt(observed: Observed, synced: Actions, now: datetime) -> Actions | None:
    """Return the actions that end the running attempt; None if the job is not preempted.

    `synced` are the actions without preemption. The attempt is not preempted if they end it or set
    the phase Finalizing. The status records the preemption first, so that the deletion of the
    RayJob does not count as a failure.
    """
    job, preemptor = observed.job, observed.preemptor
    status = synced.status or job.status
    if preemptor is None or not is_running(status) or status.get("phase") == Phase.FINALIZING:
        return None
    message = f"preempted by job {preemptor.name} with priority {preemptor.priority}"
    update = StatusUpdate(Phase.SUSPENDING, Summary(PREEMPTED, message))
    status = end_attempt(job.build_status(update, now), PREEMPTED, to_rfc3339(now), message=message)
    return Actions(status={**status, "slotReservedFor": preemptor.name}, requeue_after=0)


def requeue_preempted(job: JobView, now: datetime) -> Actions | None:
    """Return the actions that let a preempted job wait for admission; None if it already waits.

    All objects of the preempted attempt are already deleted.
    """
    message = preemption_message(job.status)
    if not message or job.status.get("phase") != Phase.SUSPENDING:
        return None
    update = StatusUpdate(Phase.PENDING, Summary(PREEMPTED, message))
    return Actions(status=job.build_status(update, now), requeue_after=0)


def update_reservation(observed: Observed) -> Status:
    """Return the status with the preemptor, for which the slot of a preempted job is reserved.

    The status keeps the reservation across restarts of the operator.
    """
    status = observed.job.status
    if is_running(status) or observed.preemptor is None or not preemption_message(status):
        return without(status, "slotReservedFor")
    return {**status, "slotReservedFor": observed.preemptor.name}


def preemption_message(status: Status) -> str:
    """Return the message about the preemption of the last attempt; empty if not preempted."""
    last = last_attempt(status) or {}
    return str(last["message"]) if last.get("outcome") == PREEMPTED else ""
