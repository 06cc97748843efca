"""Counts the worker pods of a job on a cluster by worker group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from batchinference.api.jobs_on_cluster import JobStatus
from batchinference.api.kubernetes import ClusterError, Kubernetes
from batchinference.rendering import CLUSTER_LABEL, NODE_TYPE_LABEL, POD_GROUP_LABEL

_GONE = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Workers:
    """The pods of a worker group: how many are ready, and how many there are, ready or not."""

    group: str
    ready: int
    pods: int

    def __str__(self) -> str:
        return f"{self.group} {self.ready}/{self.pods} ready"


def read_job(cluster: Kubernetes, name: str) -> tuple[JobStatus, Sequence[Workers]]:
    """Return the state of a job and the workers of its running attempt."""
    job = JobStatus.of(cluster.get(name))
    return job, read_workers(cluster, job)


def read_workers(cluster: Kubernetes, job: JobStatus) -> Sequence[Workers]:
    """Return the workers of the running attempt of a job; none if no attempt is running, or if this
    user may not list pods."""
    ray_cluster = job.raw.get("rayClusterName")
    if job.ended or not ray_cluster:
        return ()
    try:
        return count_workers(
            cluster.list_pods(f"{CLUSTER_LABEL}={ray_cluster},{NODE_TYPE_LABEL}=worker")
        )
    except ClusterError:
        return ()


def count_workers(pods: Iterable[dict[str, Any]]) -> Sequence[Workers]:
    """Return the workers of each group, sorted by name. Pods that end or have ended are ignored."""
    alive = [(_group(pod), _is_ready(pod)) for pod in pods if not _ends(pod)]
    total = Counter(group for group, _ in alive)
    ready = Counter(group for group, is_ready in alive if is_ready)
    return [Workers(group, ready[group], total[group]) for group in sorted(total)]


def _group(pod: dict[str, Any]) -> str:
    return str((pod["metadata"].get("labels") or {}).get(POD_GROUP_LABEL, ""))


def _ends(pod: dict[str, Any]) -> bool:
    phase = (pod.get("status") or {}).get("phase")
    return "deletionTimestamp" in pod["metadata"] or phase in _GONE


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
