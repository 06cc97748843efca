"""The chart value `defaults`: default settings and limits of jobs, and patches of their pods."""

from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, Field

from batchinference.spec.arguments import check_json_value
from batchinference.spec.base import SpecModel, Unique
from batchinference.spec.cluster import ALL_GROUPS, Cluster, GroupName, Limits
from batchinference.spec.defaults_merge import with_defaults
from batchinference.spec.durations import seconds_of
from batchinference.spec.lifecycle import Deadlines, Retry, Ttl
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
        """Return whether the patch changes the pods of a group."""
        return ALL_GROUPS in self.groups or group in self.groups


class PlatformLimits(Limits):
    """The limits of all jobs. Each limit applies to jobs that set a higher value, or no value."""

    deadlines: Deadlines = Deadlines()
    ttl: Ttl = Ttl()
    max_attempts: Annotated[int, Field(ge=1, le=100)] | None = None
    ephemeral_storage: MemoryRequest | None = None
    """Maximum disk space of a pod, which it does not request. A pod that uses more is evicted."""


class Lifecycle(NamedTuple):
    """The sections of a spec about attempts, deadlines and retention."""

    retry: Retry
    deadlines: Deadlines
    ttl: Ttl


class PlatformDefaults(Cluster):
    """The chart value `defaults`: the default settings of all jobs. It has the fields of
    `spec.cluster`, and also `retry`, `deadlines` and `ttl` of `spec`."""

    retry: Retry = Retry()
    deadlines: Deadlines = Deadlines()
    ttl: Ttl = Ttl()
    limits: PlatformLimits = PlatformLimits()
    patches: Annotated[list[Patch], Field(max_length=16)] = []
    """Patches of the pods of all jobs, applied after all other settings."""

    def complete(self, own: Lifecycle) -> Lifecycle:
        """Return the sections of a job, completed with the defaults and cut to the limits."""
        retry, limits = with_defaults(own.retry, self.retry), self.limits
        attempts = min(retry.max_attempts, limits.max_attempts or retry.max_attempts)
        backoff = retry.backoff.fitting(own.retry.backoff)
        ttl = limits.ttl
        # a job is kept until the TTLs of its objects have passed, so its limit applies to them too
        if (longest := ttl.after_finished) is not None:
            ttl = with_defaults(ttl, Ttl(cluster=longest, rayJob=longest))
        return Lifecycle(
            retry.model_copy(update={"max_attempts": attempts, "backoff": backoff}),
            _limited(with_defaults(own.deadlines, self.deadlines), limits.deadlines),
            _limited(with_defaults(own.ttl, self.ttl), ttl),
        )


NO_DEFAULTS = PlatformDefaults()


def _limited(section: Section, limits: Section) -> Section:
    """Return the section with each duration cut to its limit, or set to the limit if absent."""
    durations = {name: getattr(limits, name) for name in limits.model_fields_set}
    changed = {name: min(limit, getattr(section, name) or limit, key=seconds_of)
               for name, limit in durations.items() if limit is not None}  # fmt: skip
    return section.model_copy(update=changed)
