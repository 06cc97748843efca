"""Minimal Kubernetes objects, as the operator sees them."""

from __future__ import annotations

from typing import Any

from batchinference.rendering import ATTEMPT_LABEL, DEVICES_LABEL, NAME_LABEL
from batchinference.spec.platform_defaults import PlatformDefaults
from batchinference.spec.progress import Counts, Progress
from batchinference.spec.report import JobState, Report
from batchinference_operator.reconcile.config import Config
from support.documents.minimal import document

Object = dict[str, Any]

NAMESPACE = "team"
UID = "5f0c7d1e-0000-4000-8000-000000000001"
OTHER_UID = "5f0c7d1e-0000-4000-8000-000000000002"
CREATED = "2026-03-01T12:00:00Z"
CONFIG = Config(
    PlatformDefaults(image="registry/pipeline:1"), b"a key of at least thirty-two bytes"
)


def job_body(name: str = "job", *, status: Object | None = None, **metadata: Any) -> Object:
    """Return a BatchInference as a watch delivers it. Further arguments are metadata."""
    body = document(name)
    body["metadata"] = {
        "namespace": NAMESPACE,
        "name": name,
        "uid": UID,
        "generation": 1,
        "resourceVersion": "1",
        "creationTimestamp": CREATED,
        **metadata,
    }
    return body if status is None else {**body, "status": status}


def owner(uid: str = UID, kind: str = "BatchInference") -> Object:
    return {"kind": kind, "name": "job", "uid": uid, "controller": True}


def ray_job_body(name: str = "job-1", *, owner_uid: str | None = UID, **status: Any) -> Object:
    """Return a RayJob with a status as KubeRay writes it. Further arguments are fields of the
    status; None removes a field."""
    status = {"rayClusterName": f"{name}-cluster", **status}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "namespace": NAMESPACE,
            "name": name,
            "uid": f"uid-of-{name}",
            "creationTimestamp": CREATED,
            "labels": {NAME_LABEL: name.rpartition("-")[0]},
            "ownerReferences": [owner(owner_uid)] if owner_uid else [],
        },
        "spec": {"ttlSecondsAfterFinished": 600},
        "status": {key: value for key, value in status.items() if value is not None},
    }


HEAD = {"head": {"podIP": "10.0.0.7", "serviceName": "job-1-head-svc"}}
INITIALIZING = {"jobDeploymentStatus": "Initializing"}
RUNNING = {"jobStatus": "RUNNING", "jobDeploymentStatus": "Running", "rayClusterStatus": HEAD}
FAILED = {
    "jobStatus": "FAILED",
    "jobDeploymentStatus": "Failed",
    "reason": "AppFailed",
    "message": "Traceback ...",
    "rayClusterStatus": HEAD,
    "endTime": "2026-03-01T12:10:00Z",
}
SUCCEEDED = {
    "jobStatus": "SUCCEEDED",
    "jobDeploymentStatus": "Complete",
    "rayClusterStatus": HEAD,
    "endTime": "2026-03-01T12:10:00Z",
}


def pod_body(
    name: str = "job-1-head", *, job: str = "job", attempt: int = 1, gpus: int = 0, **status: Any
) -> Object:
    """Return a pod of one attempt of a job. Further arguments are its status."""
    labels = {
        NAME_LABEL: job,
        ATTEMPT_LABEL: str(attempt),
        **({DEVICES_LABEL: str(gpus)} if gpus else {}),
        "ray.io/cluster": f"{job}-{attempt}-cluster",
        "ray.io/node-type": "head" if name.endswith("head") else "worker",
    }
    return {
        "kind": "Pod",
        "metadata": {"namespace": NAMESPACE, "name": name, "labels": labels},
        "status": status,
    }


def placed(since: str = CREATED, **status: Any) -> Object:
    """Return the status of a pod that was scheduled at this time."""
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}
    return {"conditions": [scheduled], "phase": "Running", **status}


def asking(cpu: str = "1") -> Object:
    """Return the spec of a pod with one container that has this CPU limit."""
    return {"containers": [{"name": "ray", "resources": {"limits": {"cpu": cpu}}}]}


def waiting(reason: str, message: str = "") -> Object:
    """Return the status of a pod whose only container waits for this reason."""
    state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    return {"containerStatuses": [{"name": "ray", "state": state}]}


def report(
    state: JobState = JobState.RUNNING,
    *,
    rows: int | None = None,
    total: int | None = None,
    counts: Counts | None = None,
    **fields: Any,
) -> Report:
    """Return a driver's report. Further arguments are fields by their names in JSON."""
    return Report(
        name="job",
        state=state,
        progress=None if rows is None else Progress(rows=rows, total=total),
        counts=counts,
        **{
            "output": "s3://out/result/",
            "startedAt": "2026-03-01T12:01:00Z",
            "updatedAt": "2026-03-01T12:09:00Z",
            "version": "0.1.0",
            **fields,
        },
    )
