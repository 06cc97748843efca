"""Keys that identify jobs in the control loop."""

from __future__ import annotations

from batchinference.rendering import NAME_LABEL
from batchinference_operator.status.ray_job import Object

Key = tuple[str, str]
"""Namespace and name of a BatchInference."""


def key_of(body: Object) -> Key:
    """Return the key of a BatchInference."""
    return body["metadata"]["namespace"], body["metadata"]["name"]


def identity(key: Key, name: str, uid: str = "") -> Object:
    """Return an object of a job with only its identity: namespace, name, uid and label."""
    namespace, job = key
    labels = {NAME_LABEL: job}
    return {"metadata": {"namespace": namespace, "name": name, "uid": uid, "labels": labels}}


def parent_of(body: Object) -> Key:
    """Return the key of the job in an object's label."""
    metadata = body["metadata"]
    return metadata["namespace"], metadata["labels"][NAME_LABEL]
