"""The fields of a job that the admission queue needs."""

from __future__ import annotations

from dataclasses import dataclass

from batchinference.spec.cluster import Cluster
from batchinference.spec.phases import Phase
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.status.attempts import is_running

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
    queue = (job.spec.get("cluster") or {}).get("queueName")
    return queue if isinstance(queue, str) else platform.queue_name


def entry_of(job: JobView, platform: Cluster) -> QueueEntry:
    """Return the entry of a job."""
    if job.finished or not job.managed:
        return QueueEntry(job.resource_version)
    stopping = job.deleting or job.spec.get("suspend") is True
    running = is_running(job.status) or job.status.get("phase") == Phase.SUSPENDING
    queued = local_queue_of(job, platform) is not None
    waiting = not (running or stopping or queued)
    return QueueEntry(
        job.resource_version,
        int(job.spec.get("priority", 0)),
        job.created_at,
        running,
        waiting,
        queued=queued,
    )
