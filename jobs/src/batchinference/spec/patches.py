"""Patches of the pods of a job, for changes that no other field can express."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from batchinference.spec.arguments import check_json_value
from batchinference.spec.base import SpecModel, Unique
from batchinference.spec.pods import Annotations, Labels

ALL_GROUPS = "*"
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
    spec: Annotated[dict[str, Any], Field(max_length=64), AfterValidator(check_json_value)] = {}
    """Fields of the PodSpec of Kubernetes. The Ray container is named `ray`."""


class Patch(SpecModel):
    """A strategic merge patch of the pods of some groups. `null` deletes a field."""

    groups: Annotated[
        list[GroupName],
        Field(min_length=1, max_length=32),
        Unique,
    ]
    """The groups whose pods are changed: `head`, `cpu`, the names of other worker groups, or `*`
    for all groups."""
    pod: PatchedPod
    """The changes."""

    def applies_to(self, group: str) -> bool:
        return ALL_GROUPS in self.groups or group in self.groups
