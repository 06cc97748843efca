"""The sections `retry`, `deadlines` and `ttl` of a job."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from batchinference.spec.base import SpecModel, invalid
from batchinference.spec.causes import Cause
from batchinference.spec.durations import Duration, DurationOrZero, seconds_of
from batchinference.spec.quantities import Memory, Quantity
from batchinference.spec.value_fixes import above_max

DRAIN_SECONDS = 15
"""After a request to stop, a driver can commit rows in progress for this many seconds."""
STOP_SECONDS = 30
"""After a request to stop, a driver must end and report its end within this many seconds."""
CauseName = Annotated[str, Field(max_length=32)]


class Backoff(SpecModel):
    """The backoff: the time before the next attempt. It doubles with each failed attempt."""

    initial: DurationOrZero = "10s"
    """The backoff before the second attempt."""
    max: Duration = "10m"
    """The maximum backoff."""

    def _check(self) -> None:
        """Raise a validation error if both fields are set, and `initial` is above `max`. A field
        that is not set may get its value from the platform."""
        is_above = seconds_of(self.initial) > seconds_of(self.max)
        if is_above and {"initial", "max"} <= self.model_fields_set:
            raise invalid(above_max(self.initial, self.max, "initial", "max"))

    def fitting(self, own: "Backoff") -> "Backoff":
        """Return this backoff, which was merged from the `own` one of a job and defaults, with
        `initial` at most `max`. What the job sets has precedence over the other, a default."""
        if seconds_of(self.initial) <= seconds_of(self.max):
            return self
        if "max" not in own.model_fields_set:
            return self.model_copy(update={"max": self.initial})
        return self.model_copy(update={"initial": self.max})


class OutOfMemory(SpecModel):
    """More memory for the next attempt after the cause `OutOfMemory`. The head or the worker group
    that ran out of memory gets more. If this group is unknown, all worker groups get more."""

    memory_factor: Annotated[float, Field(gt=1, le=10), *Quantity] = 1.5
    """The factor by which the memory of a pod of the group increases with the next attempt."""
    max_memory: Memory
    """The memory of a pod is never increased above this maximum."""


class Retry(SpecModel):
    """The attempts of a job. Each attempt is a new RayJob with a new cluster. Attempts that ended
    because of `suspend` or `NoCapacity` do not count. A change applies from the next failure."""

    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """The maximum number of attempts, including the first."""
    backoff: Backoff = Backoff()
    """The backoff between two attempts."""
    on_cause: Annotated[dict[CauseName, Literal["Retry", "Fail"]], Field(max_length=32)] = {}
    """What happens after a cause instead of the default, such as `OutOfMemory: Fail`."""

    out_of_memory: OutOfMemory | None = None
    """More memory for attempts after `OutOfMemory`; their batch sizes and numbers of replicas stay
    the same. Without this field, each attempt requests the memory in the spec."""

    @field_validator("on_cause")
    @classmethod
    def _check_causes(cls, on_cause: dict[str, str]) -> dict[str, str]:
        known = [cause.value for cause in Cause]
        for name in on_cause:
            if name not in known:
                raise invalid(f"there is no cause '{name}', only {', '.join(known)}")
        return on_cause

    def allows(self, cause: Cause, attempts: int) -> bool:
        """Return whether another attempt follows after `attempts` attempts, the last of which
        failed with this cause."""
        action = self.on_cause.get(cause.value)
        return attempts < self.max_attempts and (
            cause.is_retried if action is None else action == "Retry"
        )


class Deadlines(SpecModel):
    """Deadlines of the job, as durations. A deadline without a value does not apply."""

    pending: Duration | None = None
    """Maximum time from the creation of the RayJob of an attempt to the first finished row. In a
    Kueue queue, the time starts at the last admission."""
    active: Duration | None = None
    """Maximum time from the creation of the RayJob of an attempt to its end. In a Kueue queue, the
    time starts at the last admission."""
    total: Duration | None = None
    """Maximum time from the creation of the job to its end. It includes all attempts, but not the
    time in which the job is suspended."""
    stall: Duration | None = None
    """Maximum time between two finished rows. It does not apply before the first one."""


class Ttl(SpecModel):
    """How long the objects of a finished job are kept. The output is never deleted."""

    cluster: DurationOrZero = "0s"
    """How long the head of the Ray cluster is kept, for its dashboard and logs. Workers are not."""
    ray_job: Duration | None = None
    """How long the RayJobs are kept. By default, as long as the BatchInference."""
    after_finished: Duration | None = None
    """How long the BatchInference and all objects that it owns are kept; by default, for ever. They
    are kept at least as long as `cluster` and `rayJob` say."""
