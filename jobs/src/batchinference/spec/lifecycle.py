"""How long a job may take, how often it is tried, and what is left of it afterwards."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.base import SpecModel
from batchinference.spec.causes import Cause
from batchinference.spec.durations import Duration, DurationOrNone
from batchinference.spec.quantities import Memory

DRAIN_SECONDS = 15
"""What a driver that is asked to stop takes to commit what is under way."""
STOP_SECONDS = 30
"""What it has to end, and to say so, before it is ended."""
CauseName = Annotated[str, Field(max_length=32)]


class Backoff(SpecModel):
    """The wait before another attempt: it doubles with each, up to a limit."""

    initial: DurationOrNone = "10s"
    """Before the second attempt."""
    max: Duration = "10m"
    """At most."""


class OutOfMemory(SpecModel):
    """More memory for the next attempt, after an attempt failed as `OutOfMemory`. The group of pods
    that ran out of memory gets it: the head or a worker group. If the group is unknown, all worker
    groups get it."""

    memory_factor: Annotated[float, Field(gt=1, le=10)] = 1.5
    """The memory of the next attempt as a multiple of what the pods of the group had."""
    max_memory: Memory
    """The largest memory of a pod that follows from this."""


class Retry(SpecModel):
    """Attempts at a job. Each is a new RayJob on a new cluster. Suspending a job ends an attempt
    too, but counts for none. What is changed here holds from the next failure on."""

    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """Attempts in all, the first one included."""
    backoff: Backoff = Backoff()
    """The wait between two."""
    on_cause: Annotated[dict[CauseName, Literal["retry", "fail"]], Field(max_length=32)] = {}
    """What follows from a cause, where that is to be other than usual: `OutOfMemory: fail`."""

    out_of_memory: OutOfMemory | None = None
    """Whether attempts that follow `OutOfMemory` request more memory. Without it, they request what
    the job says."""

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
        """Whether another attempt follows after so many, the last of which ended by this cause."""
        wanted = self.on_cause.get(cause.value)
        return attempts < self.max_attempts and (
            cause.retried if wanted is None else wanted == "retry"
        )


class Deadlines(SpecModel):
    """When to give up. Without a value there is no such end."""

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
    """How long its Ray cluster is kept, with nothing but the head once its workers are idle."""
    ray_job: Duration | None = None
    """How long its RayJobs are kept; as long as the job when absent."""
    after_finished: Duration | None = None
    """How long the BatchInference itself is kept, with everything that it owns. It is deleted when
    `cluster` and `rayJob` have passed too. It stays when absent."""
