"""The status of a BatchInference with its phase, which the operator writes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from batchinference.spec.base import REASON, Money, SpecModel, invalid, keyed
from batchinference.spec.causes import Cause
from batchinference.spec.durations import Duration, time_of
from batchinference.spec.progress import Counts, Progress, ReplacedFiles, Rows
from batchinference.spec.warnings import WarningCount
from batchinference.text import money


class Phase(StrEnum):
    """The state of a job in one word, for people. Programs should read the conditions."""

    PENDING = "Pending"
    PLANNING = "Planning"
    STARTING = "Starting"
    RUNNING = "Running"
    FINALIZING = "Finalizing"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    RETRYING = "Retrying"


ENDED_PHASES = (Phase.SUCCEEDED, Phase.FAILED)
PROCESSING_PHASES = (Phase.RUNNING, Phase.FINALIZING)
"""The phases in which the driver processes rows."""


def _check_time(text: str) -> str:
    if time_of(text) is None:
        raise invalid("expected a time such as 2026-01-31T23:59:00Z")
    return text


Timestamp = Annotated[
    str, Field(json_schema_extra={"format": "date-time"}), AfterValidator(_check_time)
]

_ANY_OBJECT = {"type": "object", "additionalProperties": True}
_OPEN = WithJsonSchema({"type": "string", "maxLength": 64})
"""The schema of an enum without its values. With the values, an API server with an older CRD would
refuse the whole status because of one new value."""
OpenPhase = Annotated[Phase, _OPEN]
OpenCause = Annotated[Cause, _OPEN]
Outcome = Annotated[Literal["Succeeded", "Failed", "Suspended"], _OPEN]
CHOICE_VARIABLE = "BATCHINFERENCE_JOB_CHOICE"
"""Environment variable of the head with the choice of its attempt as JSON."""
MAX_FAULTY_NODES = 64
FaultyNodes = Annotated[
    list[Annotated[str, Field(max_length=253)]],
    Field(max_length=MAX_FAULTY_NODES, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
]
"""Names of Kubernetes nodes on which a device failed."""
MemoryOfGroups = Annotated[dict[str, Annotated[str, Field(max_length=32)]], Field(max_length=64)]
"""Memory of a pod, by the name of its group."""


class Condition(SpecModel):
    """A Kubernetes condition."""

    type: Annotated[str, Field(max_length=316)]
    """Ready, Complete, Failed, Suspended, Reconciling, Stalled or Notified."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition is true."""
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern=REASON)]
    """The reason in one word, for programs."""
    message: Annotated[str, Field(max_length=32768)]
    """The reason, for people."""
    last_transition_time: Timestamp
    """When `status` last changed."""
    observed_generation: int
    """The generation of the spec that this condition describes."""


class Cost(SpecModel):
    """The estimated cost of the CPUs and devices of the pods, by the prices of the platform."""

    amount: Money
    """Cost of all attempts."""
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$", max_length=3)]
    """The currency of the prices, such as EUR."""
    forecast: Money | None = None
    """Expected total cost, from the cost per row of the last attempt. Absent until this attempt has
    finished 1 % of the rows, and after the end of the job."""

    def __str__(self) -> str:
        """Return the cost, and the expected cost if it is known."""
        known = money(self.amount, self.currency)
        if self.forecast is None:
            return known
        return f"{known}, {money(self.forecast, self.currency)} expected"


class DriverHead(SpecModel):
    """The head on which the driver of an attempt runs."""

    pod: str
    """The uid of the head pod."""
    lost: Annotated[int, Field(ge=0)]
    """Number of earlier heads that were lost without a finished row, or because they ran out of
    memory. An attempt that loses too many heads ends."""
    rows: Rows
    """Rows that the attempt had finished when the driver started on this head."""
    cause: OpenCause | None = None
    """Why the last head was lost, such as OutOfMemory."""


class Choice(SpecModel):
    """The devices and the capacity that an attempt asks for."""

    number: Annotated[int, Field(ge=1)]
    """The number of the choice, in the order in which choices are tried."""
    choices: Annotated[int, Field(ge=1)]
    """The number of choices of the job."""
    accelerator_types: Annotated[
        list[Annotated[str, Field(max_length=63)]],
        Field(max_length=64, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
    ] = []
    """The types of devices of the steps."""
    capacity_type: Annotated[str, Field(max_length=63)] | None = None
    """The profile in `cluster.fallback.capacityTypes`."""
    device_hour: Money | None = None
    """The price of a device per hour; for several types, their mean, weighted by the maximum
    numbers of devices. Absent if a device has no price."""
    after: Duration | None = None
    """The time without capacity before the next choice is tried. Absent for the last choice."""

    @property
    def name(self) -> str:
        """Return the types of devices and of capacity, such as `H100 spot`."""
        return " ".join(filter(None, ("+".join(self.accelerator_types), self.capacity_type)))

    def __str__(self) -> str:
        """Return the name, the price of a device, and the number of the choice."""
        price = f", {self.device_hour} per device hour" if self.device_hour else ""
        number = f" (choice {self.number} of {self.choices})" if self.choices > 1 else ""
        return f"{self.name}{price}{number}"

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Choice | None:
        """Return the choice of an attempt from the environment of its driver; None without one."""
        text = environment.get(CHOICE_VARIABLE)
        return cls.model_validate_json(text, extra="ignore") if text else None


class Waiting(SpecModel):
    """A worker group of which no pod has a node yet."""

    group: Annotated[str, Field(max_length=63)]
    """The name of the worker group."""
    since: Timestamp
    """The time since which its pods wait for a node."""


class Attempt(SpecModel):
    """An attempt: one RayJob of the job, and its result."""

    number: Annotated[int, Field(ge=1)]
    """The number of the attempt."""
    ray_job_name: str
    """The name of its RayJob."""
    generation: Annotated[int, Field(ge=0)] | None = None
    """The generation of the spec that the attempt uses. Absent until the RayJob is observed."""
    start_time: Timestamp | None = None
    """When the RayJob was created. Absent until it is observed."""
    queued_time: Timestamp | None = None
    """When the attempt entered the queue of Kueue. Absent if it does not wait in a queue."""
    admitted_time: Timestamp | None = None
    """When Kueue last admitted the attempt. The deadlines of the attempt start at this time."""
    completion_time: Timestamp | None = None
    """When the attempt ended."""
    outcome: Outcome | None = None
    """How the attempt ended: Succeeded, Failed or Suspended. Absent while it is running."""
    cause: OpenCause | None = None
    """The cause of the failure, such as NodeLost."""
    message: Annotated[str, Field(max_length=1024)] | None = None
    """The original error message."""
    out_of_memory: MemoryOfGroups | None = None
    """The groups that ran out of memory, with the memory of a pod of each group."""
    memory: MemoryOfGroups | None = None
    """The memory of a pod of each group whose memory `retry.outOfMemory` increased."""
    rows: Rows | None = None
    """Rows that this attempt finished."""
    rows_before: Rows | None = None
    """Rows that were finished before this attempt. Absent for the first attempt."""
    device_seconds: Rows | None = None
    """Device seconds of the pods of the attempt."""
    cpu_seconds: Rows | None = None
    """CPU seconds of the pods of the attempt, by their requests."""
    faulty_nodes: FaultyNodes | None = None
    """The nodes on which a device failed. Attempts before the next suspension do not use them."""
    choice: Choice | None = None
    """The types of devices and capacity that the attempt asks for. Absent if the job names none."""
    waiting: Waiting | None = None
    """The worker group that waits for capacity. Absent if each worker group has a pod on a node."""


class Internal(SpecModel):
    """Bookkeeping of the operator, which is not part of the API. Its fields are not in the CRD,
    because an older CRD would drop the fields of a newer operator."""

    suspended_seconds: int | None = None
    """The total time of suspension in seconds, which does not count towards `deadlines.total`."""
    progress_time: Timestamp | None = None
    """When the last row was finished, as observed by the operator."""
    usage_time: Timestamp | None = None
    """The time up to which `deviceSeconds` and `cpuSeconds` are counted."""
    priced_seconds: Rows | None = None
    """The device seconds of attempts whose devices have a price of their own."""
    priced_cost: Money | None = None
    """The cost of the device seconds in `pricedSeconds`."""
    driver_head: DriverHead | None = None
    """The head on which the driver of the last attempt runs. Absent until it has started."""
    gap_since: Timestamp | None = None
    """The time since which the group in `waiting` of the last attempt has no waiting pod. After a
    minute without one, `since` starts again."""


class BatchInferenceStatus(SpecModel):
    """The observed state of the job."""

    phase: OpenPhase
    """Pending, Planning, Starting, Running, Finalizing, Succeeded, Failed, Suspending, Suspended or
    Retrying."""
    observed_generation: int
    """The generation of the spec that this status describes."""
    conditions: Annotated[list[Condition], *keyed("type", 8)]
    """Ready, Complete, Failed and Suspended are always present. Ready is also true for a suspended
    job. Reconciling and Stalled are present while they are true, and Notified once the
    notifications of the job were sent or given up."""
    progress: Progress | None = None
    """The progress in rows."""
    stage: Annotated[str, Field(max_length=1024)] | None = None
    """The last stage that processes rows now. A task may run several, as `read, embed, write`."""
    counts: Counts | None = None
    """Rows by result."""
    warnings: Annotated[
        list[WarningCount],
        Field(max_length=32, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
    ] = []
    """Differences between input and output, such as files not read or texts that were cut."""
    replaced_files: ReplacedFiles | None = None
    """Input files whose rows the job has replaced or removed. Absent if there are none."""
    start_time: Timestamp | None = None
    """When the first RayJob was created. The first row is finished later."""
    completion_time: Timestamp | None = None
    """When the job ended."""
    attempt: int | None = None
    """The number of the last attempt."""
    failed_attempts: int | None = None
    """Number of failed attempts that count towards `retry.maxAttempts`."""
    next_attempt_time: Timestamp | None = None
    """When the next attempt starts. Present during the backoff."""
    attempts: Annotated[list[Attempt], *keyed("number", 20)] = []
    """The last 20 attempts."""
    operator: Annotated[Internal, WithJsonSchema(_ANY_OBJECT)] | None = None
    """Bookkeeping of the operator. It may change at any time."""
    devices: Annotated[int, Field(ge=0)] | None = None
    """Number of devices, such as GPUs, of the pods of the running attempt."""
    device_seconds: Rows | None = None
    """Device seconds of all attempts."""
    cpu_seconds: Rows | None = None
    """CPU seconds of all attempts."""
    cost: Cost | None = None
    """The estimated cost. Absent if the platform has no prices."""
    ray_job_name: str | None = None
    """The name of the current RayJob."""
    ray_cluster_name: str | None = None
    """The name of the RayCluster of this RayJob."""
    output: str | None = None
    """The path of the output."""
