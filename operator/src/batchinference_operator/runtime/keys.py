"""By what jobs are known to the loop."""

from __future__ import annotations

from batchinference.rendering import NAME_LABEL
from batchinference_operator.status.observations import Object

Key = tuple[str, str]
"""Namespace and name of a BatchInference."""


def key_of(body: Object) -> Key:
    """That of a BatchInference itself."""
    return body["metadata"]["namespace"], body["metadata"]["name"]


def parent_of(body: Object) -> Key:
    """That of the job which an object is labelled with."""
    metadata = body["metadata"]
    return metadata["namespace"], metadata["labels"][NAME_LABEL]
