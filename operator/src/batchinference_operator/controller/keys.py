"""Keys that identify jobs in the control loop."""

from __future__ import annotations

from batchinference.rendering import NAME_LABEL
from batchinference_operator.reconcile.queue_entry import JobKey
from batchinference_operator.status.ray_job import Object


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
