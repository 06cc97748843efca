"""The status of a BatchInference, as the operator writes it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from batchinference.spec.base import REASON, SpecModel
from batchinference.spec.causes import Cause
from batchinference.spec.phases import Phase
from batchinference.spec.times import time_of

MAX_ROWS = 10**15


def _time(text: str) -> str:
    if time_of(text) is None:
        raise PydanticCustomError("time", "expected a time such as 2026-01-31T23:59:00Z", {})
    return text


Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"}), AfterValidator(_time)]
Rows = Annotated[int, Field(ge=0, le=MAX_ROWS, json_schema_extra={"format": "int64"})]


MemoryOfGroups = Annotated[dict[str, Annotated[str, Field(max_length=32)]], Field(max_length=64)]


class Condition(SpecModel):
    """A condition as Kubernetes defines it."""

    type: Annotated[str, Field(max_length=316)]
    """Ready, Complete, Failed, Suspended, Reconciling or Stalled."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern=REASON)]
    """Why, in one word for programs."""
    message: Annotated[str, Field(max_length=32768)]
    """Why, for people."""
    last_transition_time: Timestamp
    """When `status` last changed."""
    observed_generation: int
    """The generation of the spec that it speaks of."""


class Progress(SpecModel):
    """How far the job is. It never goes back."""

    rows: Rows
    """Rows that are finished: written, set aside as bad, or filtered out."""
    total: Rows | None = None
    """Rows of the input; absent until it is known or can be estimated."""
    estimated: bool | None = None
    """True while `total` is an estimate."""
    percent: Annotated[int, Field(ge=0, le=100)] | None = None
    """Finished rows as a percentage of the total, rounded down."""
    rows_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Rows finished a second since the first one."""
    eta: Annotated[str, Field(max_length=32)] | None = None
    """Time that is left at this speed, such as 2m30s."""


class Counts(SpecModel):
    """Rows by result."""

    read: Rows
    """Rows that came out of the input."""
    written: Rows
    """Rows in the output."""
    failed: Rows
    """Rows that have an error record."""
    filtered: Rows = 0
    """Filtered rows: rows that a filter or another step removed."""


class Cost(SpecModel):
    """The estimated cost of the CPUs and devices of the pods, by the prices of the platform."""

    amount: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Cost of all attempts."""
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$", max_length=3)]
    """The currency of the prices, such as EUR."""
    forecast: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Expected cost at the end, by the cost per row of the last attempt; absent before it has
    finished 1 % of the rows, and after the end."""


class Attempt(SpecModel):
    """One RayJob of a job, and what became of it."""

    number: Annotated[int, Field(ge=1)]
    """Which attempt it is."""
    ray_job_name: str
    """Its RayJob."""
    generation: Annotated[int, Field(ge=0)] | None = None
    """The generation of the spec that it runs; absent until the RayJob is observed."""
    start_time: Timestamp | None = None
    """When the RayJob was created; absent until it is observed."""
    queued_time: Timestamp | None = None
    """Since when Kueue queues it; absent otherwise."""
    admitted_time: Timestamp | None = None
    """When Kueue admitted it last. Its deadlines start at this time."""
    completion_time: Timestamp | None = None
    """When it ended."""
    outcome: Literal["Succeeded", "Failed", "Suspended", "Preempted"] | None = None
    """How it ended; absent while it is running."""
    cause: Cause | None = None
    """Why it failed."""
    message: Annotated[str, Field(max_length=1024)] | None = None
    """Why it failed: the original message. Or which job preempted it."""
    out_of_memory: MemoryOfGroups | None = None
    """The groups of pods that ran out of memory, with the memory that a pod of each had."""
    memory: MemoryOfGroups | None = None
    """The memory of groups that ran out of it in earlier attempts, by `retry.outOfMemory`."""
    rows: Rows | None = None
    """Rows that it finished."""
    rows_before: Rows | None = None
    """Rows that were finished before it, by its first report; absent for the first attempt."""
    gpu_seconds: Rows | None = None
    """GPU seconds of its pods while it was running."""
    cpu_seconds: Rows | None = None
    """Seconds of the CPUs that its pods requested, while it was running."""


class BatchInferenceStatus(SpecModel):
    """The observed state of the job."""

    phase: Phase
    """Pending, Planning, Starting, Running, Finalizing, Succeeded, Failed, Suspending, Suspended or
    Retrying."""
    observed_generation: int
    """The generation of the spec that this status describes."""
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=8,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        ),
    ]
    """Ready, Complete, Failed and Suspended always; Reconciling and Stalled while true."""
    progress: Progress | None = None
    """Rows that are finished."""
    stage: Annotated[str, Field(max_length=1024)] | None = None
    """The last stage that has work, while the job runs. A fused task has several stages, such as
    `read, embed, write`."""
    counts: Counts | None = None
    """Rows by result."""
    start_time: Timestamp | None = None
    """When the RayJob was created."""
    completion_time: Timestamp | None = None
    """When the job ended."""
    attempt: int | None = None
    """The number of the last attempt."""
    failed_attempts: int | None = None
    """Attempts that have failed, and count towards `retry.maxAttempts`."""
    next_attempt_time: Timestamp | None = None
    """When the next attempt starts, while the job waits for it."""
    attempts: Annotated[list[Attempt], Field(max_length=20)] = []
    """The last 20 attempts."""
    slot_reserved_for: str | None = None
    """The job that preempted this one, while the slot of this job is reserved for it."""
    suspended_seconds: int | None = None
    """The total time of suspension, which does not count towards `deadlines.total`."""
    progress_time: Timestamp | None = None
    """When the last row was finished, as observed by the operator."""
    usage_time: Timestamp | None = None
    """The time up to which `gpuSeconds` and `cpuSeconds` are counted."""
    gpus: Annotated[int, Field(ge=0)] | None = None
    """GPUs that the pods of the running attempt have now."""
    gpu_seconds: Rows | None = None
    """GPU seconds of all attempts."""
    cpu_seconds: Rows | None = None
    """CPU seconds of all attempts."""
    cost: Cost | None = None
    """Estimated cost; absent if the platform has no prices."""
    ray_job_name: str | None = None
    """The RayJob that runs it."""
    ray_cluster_name: str | None = None
    """The RayCluster of this RayJob."""
    output: str | None = None
    """Where the output is."""
