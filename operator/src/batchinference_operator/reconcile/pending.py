"""Builds the status of a job whose next attempt cannot start yet.

The job waits for admission or for the name of its RayJob, or its objects cannot be created.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from batchinference.rendering import Names
from batchinference.spec.causes import Cause
from batchinference.spec.phases import Phase
from batchinference_operator.reconcile.admission_queue import ROUNDED_FROM, AdmissionDecision
from batchinference_operator.reconcile.attempt_end import POLL_SECONDS
from batchinference_operator.reconcile.attempt_objects import create_actions, invalid_spec
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.deadlines import job_deadlines
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.mutable_spec import MutableSpec
from batchinference_operator.reconcile.state import Actions
from batchinference_operator.reconcile.suspend import add_suspended_time
from batchinference_operator.status.attempts import remove_attempt
from batchinference_operator.status.conditions import Summary, find_condition
from batchinference_operator.status.job_status import Status, StatusUpdate
from batchinference_operator.status.ray_job import RayJobView
from batchinference_operator.status.timestamps import to_rfc3339

ADMISSION_PENDING = "AdmissionPending"
API_SERVER_UNAVAILABLE = "ApiServerUnavailable"
"""Separates a create error from the position in the admission queue in a message."""
_CREATE_ERRORS = (Cause.REFUSED.value, API_SERVER_UNAVAILABLE)
UNREACHABLE_SECONDS = 60.0
"""Seconds of unavailability after which the status reports it. Most outages are shorter."""
CREATE_RETRY_SECONDS = 60.0
"""Seconds after which an admitted job whose RayJob could not be created is queued again."""
SHORT_QUEUE_SECONDS = 30.0
LONG_QUEUE_SECONDS = 300.0
"""Seconds between updates of a waiting job's position, with fewer than ROUNDED_FROM jobs ahead and
with more. They do not delay the start, because the admission queue wakes the job."""


@dataclass(frozen=True)
class CreateError:
    """Why the objects of an attempt could not be created."""

    message: str
    unreachable_seconds: float | None = None
    """Seconds for which the API server has been unreachable; None if it rejected an object."""
    field: str = ""
    """The field of the spec that the API server rejected; empty for other errors."""


def status_after_create_error(job: JobView, error: CreateError, now: datetime) -> Status | None:
    """Return the status that reports the error.

    None if the API server has been unreachable for less than UNREACHABLE_SECONDS.
    """
    if error.field:
        return invalid_spec(job, f"{error.field}: {error.message}", now)
    if error.unreachable_seconds is None:
        message = f"{error.message}{_kueue_hint(job, error.message)}"
        summary = Summary(Cause.REFUSED.value, message)
    elif error.unreachable_seconds >= UNREACHABLE_SECONDS:
        message = f"the API server could not create the job's objects: {error.message}"
        summary = Summary(API_SERVER_UNAVAILABLE, message)
    else:
        return None
    job = job.with_status(add_suspended_time(job, now))
    return _pending_status(job, summary, now)


def has_create_error(job: JobView) -> bool:
    """Return whether the status reports that the objects of the attempt cannot be created."""
    ready = find_condition(job.status, "Ready") or {}
    return ready.get("reason") in _CREATE_ERRORS


def _kueue_hint(job: JobView, message: str) -> str:
    """Return how to fix a rejection of an autoscaler by Kueue; empty for other rejections.

    Kueue may manage RayJobs without a queue, and puts them into the LocalQueue `default` if there
    is one. It then requires an annotation that only RayJobs with a queue have, and a feature gate.
    """
    if "kueue" not in message or "autoscaling" not in message:
        return ""
    if not (job.spec.get("cluster") or {}).get("queueName"):
        return ". Kueue manages jobs without a queue: set spec.cluster.queueName to a LocalQueue"
    return (
        ". Enable the feature gate ElasticJobsViaWorkloadSlices of Kueue, or set "
        "spec.cluster.workers.min and max to the same number"
    )


def requeue_for_admission(job: JobView, now: datetime) -> JobView:
    """Return the job without the attempt whose RayJob could not be created.

    The job requests admission again after CREATE_RETRY_SECONDS, so that other jobs can start first.
    """
    at = to_rfc3339(now + timedelta(seconds=CREATE_RETRY_SECONDS))
    return job.with_status({**remove_attempt(job.status), "nextAttemptTime": at})


def wait_for_name(job: JobView, ray_job: RayJobView, now: datetime) -> Actions:
    """Return the actions while another RayJob has the name of the job's RayJob."""
    if ray_job.owner_uid is not None:
        message = f"waiting until RayJob {ray_job.name} of a deleted BatchInference is gone"
    else:
        message = f"a RayJob named {ray_job.name} exists and is not this job's: delete it"
    status = _pending_status(job, Summary("NameTaken", message), now)
    return Actions(status=status, requeue_after=POLL_SECONDS)


def wait_for_admission(
    job: JobView,
    names: Names,
    spec: MutableSpec,
    config: Config,
    admission: AdmissionDecision,
    now: datetime,
) -> Actions:
    """Return the actions of a job that waits in the admission queue.

    A job with an invalid spec, or whose pods a dry run rejects, fails instead of waiting.
    """
    ready = find_condition(job.status, "Ready") or {}
    same_spec = job.status.get("observedGeneration") == job.generation
    checked = same_spec and ready.get("reason") == ADMISSION_PENDING
    planned = Actions() if checked else create_actions(job, names, config, now)
    if not (checked or planned.create):
        return planned
    status = _pending_status(job, Summary(ADMISSION_PENDING, admission.message), now)
    refresh = SHORT_QUEUE_SECONDS if admission.ahead < ROUNDED_FROM else LONG_QUEUE_SECONDS
    deadlines = [deadline.remaining for deadline in job_deadlines(job, spec, now)]
    requeue_after = min([refresh, *deadlines])
    return Actions(dry_run=planned.dry_run, status=status, requeue_after=requeue_after)


def _pending_status(job: JobView, summary: Summary, now: datetime) -> Status:
    update = StatusUpdate(Phase.PENDING, summary)
    return job.build_status(update, now)
