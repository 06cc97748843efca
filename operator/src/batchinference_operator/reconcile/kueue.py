"""Handles what Kueue does with the RayJob of an attempt: queue, admit, evict or reject it.

Being queued is not a failure. While the RayJob is suspended, a failure in the driver's report is
ignored, because Kueue deletes the pods. When Kueue admits the RayJob, the attempt starts over and
its deadlines start. A gated pod is a pod that Kueue has not admitted yet.
"""

from dataclasses import replace
from datetime import datetime

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.observed_and_actions import Observed
from batchinference_operator.status.attempts import last_attempt, update_last
from batchinference_operator.status.conditions import find_condition
from batchinference_operator.status.job_status import Status, internal, with_internal
from batchinference_operator.status.ray_job_view import Object, RayJobView
from batchinference_operator.status.timestamps import seconds_since, to_rfc3339

GATED_SECONDS = 10.0
RELEASE_SECONDS = 60.0
"""When a pod of an admitted RayJob has been gated for GATED_SECONDS, Kueue is asked to check the
RayJob, and again every RELEASE_SECONDS."""


def is_gated(observed: Observed) -> bool:
    """Return whether an attempt has gated pods and no finished row. After the first row, gated pods
    are additional pods of an elastic job, which runs without them."""
    no_row = "progressTime" not in internal(observed.job.status)
    return no_row and any(pod.gated for pod in observed.pods_of_attempt)


def needs_release(observed: Observed, ray_job: RayJobView, now: datetime) -> bool:
    """Return whether to ask Kueue to check an admitted RayJob with gated pods.

    Kueue 0.17 removes the gates of an elastic job only when its RayJob changes. When KubeRay
    replaces a lost pod, the RayJob does not change.
    """
    if ray_job.suspended or ray_job.ended or not ray_job.queue:
        return False
    asked = seconds_since(ray_job.released_at, now) if ray_job.released_at else RELEASE_SECONDS
    oldest = now.timestamp() - GATED_SECONDS
    gated = (pod for pod in observed.pods_of_attempt if pod.gated and not pod.deleting)
    return asked >= RELEASE_SECONDS and any(pod.created_at <= oldest for pod in gated)


def track_kueue_admission(observed: Observed, ray_job: RayJobView, now: datetime) -> Observed:
    """Return the observation in which the attempt is marked as queued or admitted.

    While its RayJob is suspended, a report that does not say that the job succeeded is removed.
    Pods that are gated after the admission are additional pods of an elastic job, or replace lost
    pods. Such pods do not stop the deadlines of the attempt.
    """
    job, answer, report = observed.job, observed.answer, observed.report
    awaits = "admittedTime" not in last_attempt(job.status) and is_gated(observed)
    change = mark_queued if ray_job.suspended or awaits else mark_admitted
    if ray_job.suspended and answer and report and report.state != JobState.SUCCEEDED:
        answer = replace(answer, report=None)
    status = change(job.status, to_rfc3339(now))
    return replace(observed, job=job.with_status(status), answer=answer)


def rejection_hint(job: JobView, message: str, local_queues: str, default_queue: str | None) -> str:
    """Return the fix if Kueue rejected a RayJob because of its autoscaler; otherwise empty.

    Kueue may be set up to manage RayJobs without a queue. Then Kueue puts such RayJobs into the
    LocalQueue `default`, if there is one. Kueue accepts an autoscaler only with a feature gate and
    with an annotation that the operator adds to RayJobs with a queue.
    """
    if "kueue" not in message or "autoscaling" not in message or "MultiKueue" in message:
        return ""
    if not ((job.spec.get("cluster") or {}).get("queueName") or default_queue):
        fix = "Set spec.cluster.queueName to a LocalQueue"
        return f". Kueue manages jobs without a queue. {fix}{local_queues}"
    return (
        ". Enable the feature gate ElasticJobsViaWorkloadSlices of Kueue, or set "
        "spec.cluster.workers.min to spec.cluster.workers.max"
    )


def quota_message(workload: Object) -> str:
    """Return Kueue's message about why a Workload waits for quota or was evicted; else empty."""
    status = workload.get("status") or {}
    for kind, reported in (("QuotaReserved", "False"), ("Evicted", "True")):
        condition = find_condition(status, kind)
        if condition.get("status") == reported and condition.get("message"):
            return str(condition["message"])
    return ""


def mark_queued(status: Status, now: str) -> Status:
    """Return the status in which Kueue queues the running attempt.

    The fields about the driver and the progress are removed, because the attempt starts over when
    it is admitted. The rows are kept, because a driver that resumes counts them in its reports.
    """
    last = last_attempt(status)
    if "queuedTime" in last and "progressTime" not in internal(status):
        return status
    status = with_internal(status, progressTime=None, driverHead=None, gapSince=None)
    queued = last.get("queuedTime", now)
    return update_last(status, queuedTime=queued, admittedTime=None, waiting=None)


def mark_admitted(status: Status, now: str) -> Status:
    """Return the status in which Kueue has admitted the running attempt, if it was queued."""
    if "queuedTime" not in last_attempt(status):
        return status
    return update_last(status, queuedTime=None, admittedTime=now)
