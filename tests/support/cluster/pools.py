"""The warm clusters of a namespace."""

from __future__ import annotations

from batchinference.rendering import CLAIM, POOL_LABEL
from support.cluster.kubectl import Kubectl


def idle(kubectl: Kubectl) -> list[str]:
    """Return the names of the ready clusters that no attempt has claimed."""
    return [
        body["metadata"]["name"]
        for body in kubectl.list("rayclusters", POOL_LABEL)
        if body.get("status", {}).get("state") == "ready"
        and CLAIM not in body["metadata"].get("annotations", {})
    ]
