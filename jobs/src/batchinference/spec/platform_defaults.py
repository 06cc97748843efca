"""The defaults of the platform, with patches of pods for changes that no field can express."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from batchinference.spec.arguments import check_json_value
from batchinference.spec.base import SpecModel, Unique
from batchinference.spec.cluster import ALL_GROUPS, Cluster, GroupName


class PatchedPod(SpecModel):
    metadata: Annotated[dict[str, Any], AfterValidator(check_json_value)] = {}
    """Labels and annotations to change."""
    spec: Annotated[dict[str, Any], AfterValidator(check_json_value)] = {}
    """Fields of the PodSpec of Kubernetes. The Ray container is named `ray`."""


class Patch(SpecModel):
    """A strategic merge patch of the pods of some groups. `null` deletes a field."""

    groups: Annotated[list[GroupName], Field(min_length=1, max_length=32), Unique]
    """The groups whose pods are changed: `head`, `cpu`, the names of other worker groups, or `*`
    for all groups. Groups that a job does not have are ignored."""
    pod: PatchedPod
    """The changes."""

    def applies_to(self, group: str) -> bool:
        return ALL_GROUPS in self.groups or group in self.groups


class PlatformDefaults(Cluster):
    """The chart value `defaults`: the settings of all jobs, in the form of `spec.cluster`."""

    patches: Annotated[list[Patch], Field(max_length=16)] = []
    """Patches of the pods of all jobs. They are applied last."""
