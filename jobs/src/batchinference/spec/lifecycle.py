"""Retries, deadlines and retention of a job."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.base import SpecModel
from batchinference.spec.causes import Cause
from batchinference.spec.durations import Duration, DurationOrNone
from batchinference.spec.quantities import Memory

DRAIN_SECONDS = 15
"""Seconds for which a driver that is asked to stop may commit the work in progress."""
STOP_SECONDS = 30
"""Seconds within which it must end and report its end."""
CauseName = Annotated[str, Field(max_length=32)]


class Backoff(SpecModel):
    """The backoff before the next attempt. It doubles with each failed attempt."""

    initial: DurationOrNone = "10s"
    """Before the second attempt."""
    max: Duration = "10m"
    """The maximum."""


class OutOfMemory(SpecModel):
    """More memory for the next attempt, after an attempt failed as `OutOfMemory`. The group of pods
    that ran out of memory gets it: the head or a worker group. If the group is unknown, all worker
    groups get it."""

    memory_factor: Annotated[float, Field(gt=1, le=10)] = 1.5
    """The memory of the next attempt as a multiple of what the pods of the group had."""
    max_memory: Memory
    """The maximum memory of a pod by this rule."""


class Retry(SpecModel):
    """The attempts of a job. Each is a new RayJob with a new cluster. An attempt that `suspend`
    or preemption ended does not count. A change takes effect at the next failure."""

    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """The maximum number of attempts, including the first."""
    backoff: Backoff = Backoff()
    """The backoff between two attempts."""
    on_cause: Annotated[dict[CauseName, Literal["retry", "fail"]], Field(max_length=32)] = {}
    """Overrides whether a cause is retried, such as `OutOfMemory: fail`."""

    out_of_memory: OutOfMemory | None = None
    """Whether attempts that follow `OutOfMemory` request more memory. Without it, they request
    the memory in the spec. Batch sizes and replicas stay as they are: an attempt never reduces
    them because a pod was killed."""

    @field_validator("on_cause")
    @classmethod
    def _known(cls, wanted: dict[str, str]) -> dict[str, str]:
        known = [cause.value for cause in Cause]
        for name in wanted:
            if name not in known:
                message = "there is no cause '{name}', only {known}"
                raise PydanticCustomError(
                    "cause", message, {"name": name, "known": ", ".join(known)}
                )
        return wanted

    def allows(self, cause: Cause, attempts: int) -> bool:
        """Return whether another attempt follows after `attempts`, the last with this cause."""
        wanted = self.on_cause.get(cause.value)
        return attempts < self.max_attempts and (
            cause.retried if wanted is None else wanted == "retry"
        )


class Deadlines(SpecModel):
    """Deadlines of the job. A deadline without a value never passes."""

    pending: Duration | None = None
    """From the creation of an attempt's RayJob to the first finished row. In a queue of Kueue, from
    its admission."""
    active: Duration | None = None
    """From the creation of an attempt's RayJob to its end. In a queue of Kueue, from its last
    admission."""
    total: Duration | None = None
    """From the job's creation to its end, over all attempts, without the time it was suspended."""
    stall: Duration | None = None
    """Between two finished rows, once there was one."""


class Ttl(SpecModel):
    """How long the objects of a finished job are kept. The output is never deleted."""

    cluster: DurationOrNone = "0s"
    """How long its Ray cluster is kept. Idle workers are removed, the head stays."""
    ray_job: Duration | None = None
    """How long its RayJobs are kept; as long as the job if absent."""
    after_finished: Duration | None = None
    """How long the BatchInference itself is kept, with everything that it owns. It is deleted
    when `cluster` and `rayJob` have passed too. It is kept for ever if absent."""
