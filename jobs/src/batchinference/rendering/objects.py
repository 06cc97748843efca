"""Parts of rendered objects: metadata, owner references, dumps of models, and pod templates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from batchinference.plan.groups import HEAD_GROUP
from batchinference.spec.job import API_VERSION, KIND

RESTRICTED: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""Container security context that the Pod Security level `restricted` requires."""


@dataclass(frozen=True)
class Owner:
    """The owner with which Kubernetes deletes other objects; by default, a BatchInference."""

    name: str
    uid: str
    kind: str = KIND
    api_version: str = API_VERSION

    def reference(self) -> dict[str, Any]:
        """Return the owner reference. It omits blockOwnerDeletion, for which OpenShift requires
        permission to set finalizers."""
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }


def metadata(
    name: str, namespace: str | None, labels: dict[str, str], owner: Owner | None
) -> dict[str, Any]:
    """Return the metadata of an object, with an owner reference if it has an owner."""
    result: dict[str, Any] = {"name": name, "labels": labels}
    if namespace:
        result["namespace"] = namespace
    if owner is not None:
        result["ownerReferences"] = [owner.reference()]
    return result


def dump(model: BaseModel) -> dict[str, Any]:
    """Return a model as JSON with the field names of Kubernetes, without null fields."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def dump_given(model: BaseModel) -> dict[str, Any]:
    """Return a model like `dump`, but without fields that have their default value."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)


def templates_of(ray_cluster: dict[str, Any]) -> list[tuple[str, int, dict[str, Any]]]:
    """Return the name, maximum number of pods, and pod template of each group of a RayCluster."""
    workers = ray_cluster["workerGroupSpecs"]
    return [
        (HEAD_GROUP, 1, ray_cluster["headGroupSpec"]["template"]),
        *((group["groupName"], group["maxReplicas"], group["template"]) for group in workers),
    ]


def running_containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the containers of a pod spec that run at the same time, including native sidecars."""
    first = pod.get("initContainers") or []
    sidecars = [one for one in first if one.get("restartPolicy") == "Always"]
    return [*(pod.get("containers") or []), *sidecars]
