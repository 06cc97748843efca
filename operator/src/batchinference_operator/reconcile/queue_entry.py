"""Tells the admission queue what it needs to know about a job."""

from __future__ import annotations

from batchinference.spec.cluster import Cluster
from batchinference.spec.phases import Phase
from batchinference_operator.reconcile.admission_queue import QueueEntry
from batchinference_operator.reconcile.reconcile import finished
from batchinference_operator.reconcile.state import JobView
from batchinference_operator.status.attempts import is_running


def local_queue_of(job: JobView, platform: Cluster) -> str | None:
    """Return the LocalQueue through which Kueue admits the job; None if it has none."""
    queue = (job.spec.get("cluster") or {}).get("queue")
    return queue if isinstance(queue, str) else platform.queue


def entry_of(job: JobView, platform: Cluster) -> QueueEntry:
    """Return whether a job holds resources or waits for admission, and its priority."""
    if finished(job) or local_queue_of(job, platform) is not None:
        return QueueEntry(job.resource_version)
    holds = is_running(job.status) or job.status.get("phase") == Phase.SUSPENDING
    waits = not (holds or job.deleting or job.spec.get("suspend") is True)
    # a priority that was raised above the limit while the job waits is rejected at its start
    wanted, most = int(job.spec.get("priority", 0)), platform.limits.priority
    priority = wanted if most is None else min(wanted, most)
    return QueueEntry(job.resource_version, priority, job.created_at, holds, waits)
