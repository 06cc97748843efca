"""Patches of the pods of a job, for changes that no other field can express."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from batchinference.spec.base import NAMED_ONCE, SpecModel, Unique
from batchinference.spec.pods import Annotations, Labels

ALL_GROUPS = "*"
MAX_DEPTH = 32
"""Maximum nesting of a patch. The PodSpec of Kubernetes has about 15 levels."""


def _check_depth(value: dict[str, Any]) -> dict[str, Any]:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
    if level:
        message = "it is nested more than {depth} levels deep"
        raise PydanticCustomError("depth", message, {"depth": MAX_DEPTH})
    return value


GroupName = Annotated[str, Field(min_length=1, max_length=20)]
"""`head`, `cpu`, the name of another worker group, or `*` for all groups."""


class PatchedMetadata(SpecModel):
    labels: Labels = {}
    """Labels of the pods."""
    annotations: Annotations = {}
    """Annotations of the pods."""


class PatchedPod(SpecModel):
    metadata: PatchedMetadata = PatchedMetadata()
    """Labels and annotations to add."""
    spec: Annotated[dict[str, Any], Field(max_length=64), AfterValidator(_check_depth)] = {}
    """Fields of the PodSpec of Kubernetes. The Ray container is named `ray`."""


class Patch(SpecModel):
    """A strategic merge patch of the pods of some groups. `null` deletes a field."""

    groups: Annotated[
        list[GroupName],
        Field(min_length=1, max_length=32, json_schema_extra=NAMED_ONCE),
        Unique,
    ]
    """The groups whose pods are changed: `head`, `cpu`, the names of other worker groups, or `*`
    for all groups."""
    pod: PatchedPod
    """The changes."""

    def applies_to(self, group: str) -> bool:
        return ALL_GROUPS in self.groups or group in self.groups
