"""The rules of kstatus for custom resources. Flux and Helm 4 use them to wait for resources.

A port of sigs.k8s.io/cli-utils/pkg/kstatus/status, without its rules for built-in kinds.
"""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def kstatus(body: Object) -> str:
    """Return the kstatus of an object: Current, InProgress, Failed or Terminating."""
    metadata, status = body["metadata"], body.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    if status.get("observedGeneration", metadata.get("generation")) != metadata.get("generation"):
        return "InProgress"
    for condition in status.get("conditions", []):
        if condition["type"] == "Reconciling" and condition["status"] == "True":
            return "InProgress"
        if condition["type"] == "Stalled" and condition["status"] == "True":
            return "Failed"
    ready = [one["status"] for one in status.get("conditions", []) if one["type"] == "Ready"]
    return "Current" if ready in ([], ["True"]) else "InProgress"
