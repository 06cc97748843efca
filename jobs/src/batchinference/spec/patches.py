"""Changes to the pods of a job that no other field of the specification can express."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from batchinference.spec.base import EachOnce, SpecModel
from batchinference.spec.pods import LabelKey, LabelValue

ALL_GROUPS = "*"
MAX_DEPTH = 32
"""A pod of Kubernetes has about 15 levels."""


def _not_too_deep(value: dict[str, Any]) -> dict[str, Any]:
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
"""head, cpu, the name of another worker group, or `*` for all."""


class PatchedMetadata(SpecModel):
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=64)] = {}
    """Labels of the pods."""
    annotations: Annotated[
        dict[LabelKey, Annotated[str, Field(max_length=4096)]], Field(max_length=64)
    ] = {}
    """Annotations of the pods."""


class PatchedPod(SpecModel):
    metadata: PatchedMetadata = PatchedMetadata()
    """Labels and annotations to add."""
    spec: Annotated[dict[str, Any], Field(max_length=64), AfterValidator(_not_too_deep)] = {}
    """Fields of the PodSpec of Kubernetes. The container of Ray is named `ray`."""


class Patch(SpecModel):
    """A strategic merge patch of the pods of some groups. `null` deletes a field."""

    groups: Annotated[list[GroupName], Field(min_length=1, max_length=32), EachOnce]
    """The groups whose pods are changed: `head`, `cpu`, the names of other worker groups, or `*`
    for all."""
    pod: PatchedPod
    """What is changed."""

    def applies_to(self, group: str) -> bool:
        return ALL_GROUPS in self.groups or group in self.groups
