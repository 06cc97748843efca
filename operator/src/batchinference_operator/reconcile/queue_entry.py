"""The fields of a job that the admission queue needs."""

from __future__ import annotations

from dataclasses import dataclass

from batchinference.rendering import NAME_LABEL
from batchinference.spec.cluster import Cluster
from batchinference.spec.phases import Phase
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.status.attempts import is_running
from batchinference_operator.status.ray_job import Object

JobKey = tuple[str, str]
"""Namespace and name of a BatchInference."""


@dataclass(frozen=True)
class QueueEntry:
    """Whether a job runs or waits for admission, and its priority.

    A job that neither runs nor waits has ended, is suspended, is being deleted or waits in Kueue.
    """

    resource_version: str
    """The resourceVersion of the job when it was observed."""
    priority: int = 0
    created_at: str = ""
    running: bool = False
    """Whether it has or may have pods."""
    waiting: bool = False
    queued: bool = False
    """Whether Kueue admits its next attempt. The running one goes by the label of its RayJob."""


def local_queue_of(job: JobView, platform: Cluster) -> str | None:
    """Return the LocalQueue through which Kueue admits the job; None if it has none."""
    queue = (job.spec.get("cluster") or {}).get("queue")
    return queue if isinstance(queue, str) else platform.queue


def entry_of(job: JobView, platform: Cluster) -> QueueEntry:
    """Return the entry of a job."""
    if job.finished or not job.managed:
        return QueueEntry(job.resource_version)
    stopping = job.deleting or job.spec.get("suspend") is True
    running = is_running(job.status) or job.status.get("phase") == Phase.SUSPENDING
    queued = local_queue_of(job, platform) is not None
    waiting = not (running or stopping or queued)
    # a priority that was raised above the limit while the job waits is rejected at its start
    wanted, most = int(job.spec.get("priority", 0)), platform.limits.priority
    priority = wanted if most is None else min(wanted, most)
    return QueueEntry(
        job.resource_version,
        priority,
        job.created_at,
        running,
        waiting,
        queued=queued,
    )


def key_of(body: Object) -> JobKey:
    """Return the key of a BatchInference."""
    return body["metadata"]["namespace"], body["metadata"]["name"]


def identity(key: JobKey, name: str, uid: str = "") -> Object:
    """Return an object of a job with only its identity: namespace, name, uid and label."""
    namespace, job = key
    labels = {NAME_LABEL: job}
    return {"metadata": {"namespace": namespace, "name": name, "uid": uid, "labels": labels}}


def parent_of(body: Object) -> JobKey:
    """Return the key of the job in an object's label."""
    metadata = body["metadata"]
    return metadata["namespace"], metadata["labels"][NAME_LABEL]
