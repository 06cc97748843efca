"""The status of a BatchInference, as the operator writes it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.base import SpecModel

Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Rows = Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})]


class Phase(StrEnum):
    """One word for people; programs read the conditions."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    FINALIZING = "Finalizing"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Condition(SpecModel):
    """A condition as Kubernetes defines it."""

    type: Annotated[str, Field(max_length=316)]
    """Ready, Complete, Failed, Reconciling or Stalled."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(max_length=1024)]
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
    rows_per_second: float | None = None
    """Rows finished a second since the first one."""
    eta: str | None = None
    """Time that is left at this speed, such as 2m30s."""


class Counts(SpecModel):
    """Rows by what became of them."""

    read: Rows
    """Rows that came out of the input."""
    written: Rows
    """Rows in the output."""
    failed: Rows
    """Rows in the errors dataset."""
    skipped: Rows
    """Rows that a filter left out."""


class BatchInferenceStatus(SpecModel):
    """What the operator has seen."""

    phase: Phase
    """Pending, Starting, Running, Finalizing, Succeeded or Failed."""
    observed_generation: int
    """The generation of the spec that this status speaks of."""
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
    """Ready, Complete and Failed always; Reconciling and Stalled while true."""
    progress: Progress | None = None
    """Rows done so far."""
    counts: Counts | None = None
    """Rows by what became of them."""
    start_time: Timestamp | None = None
    """When the RayJob was created."""
    completion_time: Timestamp | None = None
    """When the job came to its end."""
    ray_job_name: str | None = None
    """The RayJob that runs it."""
    ray_cluster_name: str | None = None
    """The RayCluster that KubeRay made for it."""
    output: str | None = None
    """Where the output is."""
