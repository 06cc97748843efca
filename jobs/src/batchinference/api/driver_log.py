"""Reads the log of the driver of a running job, from the head pod of its Ray cluster."""

from __future__ import annotations

from batchinference.api.jobs_on_cluster import JobStatus
from batchinference.api.kubernetes import ClusterError, Kubernetes, Object
from batchinference.credentials import LineMasker
from batchinference.rendering import CLUSTER_LABEL, NODE_TYPE_LABEL, RAY_CONTAINER
from batchinference.rendering.rayjob import RAY_LOGS

MAX_BYTES = 1_000_000
"""Maximum number of bytes that are read from the end of the log, as many as stored logs have."""
RUNNING_PHASES = ("Starting", "Running", "Finalizing")
_COMMAND = ("sh", "-c", f"tail -c {MAX_BYTES} {RAY_LOGS}/job-driver-*.log")
_PREVIOUS = "--previous prints the log of the last run that has ended"


def running_log(cluster: Kubernetes, name: str) -> str | None:
    """Return the end of the driver log of a job, with masked credentials; None if no attempt of the
    job is running. Raises ClusterError if there is no log yet, or if it cannot be read."""
    job = JobStatus.of(cluster.get(name))
    if job.phase not in RUNNING_PHASES:
        return None
    attempt = f"attempt {job.attempt} of job '{name}'"
    head = _head(cluster, str(job.raw.get("rayClusterName") or ""))
    if head is None:
        raise ClusterError(f"{attempt}: its head pod is not running yet ({job.phase}). {_PREVIOUS}")
    try:
        log = cluster.execute(head, RAY_CONTAINER, _COMMAND)
    except ClusterError as error:
        fix = f"Ask for the permission for pods/exec. {_PREVIOUS}"
        raise ClusterError(f"{attempt}: its log cannot be read: {error}. {fix}") from None
    if not log:
        raise ClusterError(f"{attempt}: its driver has no log yet ({job.phase}). {_PREVIOUS}")
    lines = log.splitlines()
    if len(log.encode()) >= MAX_BYTES:
        lines = lines[1:]  # a partial line may lack the name by which a secret is recognized
    return "\n".join(map(LineMasker(), lines))


def _head(cluster: Kubernetes, ray_cluster: str) -> str | None:
    """Return the name of the running head pod of a Ray cluster; None if there is none."""
    if not ray_cluster:
        return None
    heads = cluster.list_pods(f"{CLUSTER_LABEL}={ray_cluster},{NODE_TYPE_LABEL}=head")
    return next((str(pod["metadata"]["name"]) for pod in heads if _is_running(pod)), None)


def _is_running(pod: Object) -> bool:
    ends = "deletionTimestamp" in pod["metadata"]
    return not ends and (pod.get("status") or {}).get("phase") == "Running"
