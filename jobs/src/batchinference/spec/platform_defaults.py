"""The defaults of the platform, with patches of pods for changes that no field can express."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, Field

from batchinference.spec.arguments import check_json_value
from batchinference.spec.base import SpecModel, Unique
from batchinference.spec.cluster import ALL_GROUPS, Cluster, GroupName
from batchinference.spec.durations import seconds_of
from batchinference.spec.lifecycle import Deadlines, Retry, Ttl
from batchinference.spec.limits import Limits
from batchinference.spec.merge import with_defaults
from batchinference.spec.quantities import MemoryRequest

Section = TypeVar("Section", bound=SpecModel)


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


class PlatformLimits(Limits):
    """The limits of all jobs. A value of a job that is higher than its limit is replaced with the
    limit. A job without a value gets the limit."""

    deadlines: Deadlines = Deadlines()
    ttl: Ttl = Ttl()
    max_attempts: Annotated[int, Field(ge=1, le=100)] | None = None
    ephemeral_storage: MemoryRequest | None = None
    """Disk space of a pod, beyond which it is evicted. Pods do not request it."""


class Lifecycle(NamedTuple):
    """The sections of a job about its life."""

    retry: Retry
    deadlines: Deadlines
    ttl: Ttl


class PlatformDefaults(Cluster):
    """The chart value `defaults`: the settings of all jobs, in the form of `spec.cluster`, and
    `retry`, `deadlines` and `ttl` of `spec`."""

    retry: Retry = Retry()
    deadlines: Deadlines = Deadlines()
    ttl: Ttl = Ttl()
    limits: PlatformLimits = PlatformLimits()
    patches: Annotated[list[Patch], Field(max_length=16)] = []
    """Patches of the pods of all jobs. They are applied last."""

    def complete(self, own: Lifecycle) -> Lifecycle:
        """Return the sections of a job with the defaults and the limits of the platform."""
        retry, limits = with_defaults(own.retry, self.retry), self.limits
        attempts = min(retry.max_attempts, limits.max_attempts or retry.max_attempts)
        ttl = limits.ttl
        # also limit the TTLs of its objects, because a job is kept as long as they are
        if (longest := ttl.after_finished) is not None:
            ttl = with_defaults(ttl, Ttl(cluster=longest, rayJob=longest))
        return Lifecycle(
            retry.model_copy(update={"max_attempts": attempts}),
            _limited(with_defaults(own.deadlines, self.deadlines), limits.deadlines),
            _limited(with_defaults(own.ttl, self.ttl), ttl),
        )


NO_DEFAULTS = PlatformDefaults()


def _limited(section: Section, limits: Section) -> Section:
    """Return durations, each at most its limit. A duration without a value gets its limit."""
    given = {name: getattr(limits, name) for name in limits.model_fields_set}
    lower = {name: min(most, getattr(section, name) or most, key=seconds_of)
             for name, most in given.items() if most is not None}  # fmt: skip
    return section.model_copy(update=lower)
