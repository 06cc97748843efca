"""What the rendered objects have in common: metadata, owners, and parts of the spec as dicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from batchinference.spec.job import API_VERSION, KIND


@dataclass(frozen=True)
class Owner:
    """The owner of other objects, which are deleted with it. By default a BatchInference."""

    name: str
    uid: str
    kind: str = KIND
    api_version: str = API_VERSION

    def reference(self) -> dict[str, Any]:
        """Return the owner reference.

        It omits blockOwnerDeletion, because OpenShift requires permission to set finalizers for it.
        """
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
    """Return the metadata of an object. Without an owner, it has no owner reference."""
    result: dict[str, Any] = {"name": name, "labels": labels}
    if namespace:
        result["namespace"] = namespace
    if owner is not None:
        result["ownerReferences"] = [owner.reference()]
    return result


def dump(model: BaseModel) -> dict[str, Any]:
    """Return a part of the specification in the form that Kubernetes expects."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
