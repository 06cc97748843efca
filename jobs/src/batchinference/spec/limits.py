"""Limits on the resources that a job may use on a cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from batchinference.spec.base import SpecModel
from batchinference.spec.quantities import Quantity


class Limits(SpecModel):
    """Limits on the resources of a job. A job that could exceed a limit is rejected before it
    starts. A job that has used its device hours or tokens is stopped. A limit without a value does
    not apply. If the platform's defaults also set a limit, the lower value applies."""

    devices: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Maximum number of devices, such as GPUs, of all worker groups at their maximum size: every
    resource whose profile has a `resource` or a `device`."""
    cpu: Annotated[float, Field(gt=0, le=10_000_000), *Quantity] | None = None
    """Maximum number of CPUs of the head and of all worker groups at their maximum size."""
    device_hours: Annotated[float, Field(gt=0, le=100_000_000), *Quantity] | None = None
    """Maximum device hours of all attempts together. When they are used, the job fails with the
    cause `LimitExceeded`. Its output is kept."""
    tokens: Annotated[int, Field(ge=1, le=10**15, json_schema_extra={"format": "int64"})] | None = (
        None
    )
    """Maximum input and output tokens of models for the committed rows, also on your machine. Above
    it, the job commits the rows that are already computed, and fails with the cause
    `LimitExceeded`. Endpoints that do not report their `usage` are not limited."""


def lower_limits(job: Limits, platform: Limits) -> Limits:
    """Return the lower value of each limit. A limit without a value does not apply."""
    pairs = {name: (getattr(job, name), getattr(platform, name)) for name in Limits.model_fields}
    lower = {name: min((limit for limit in pair if limit is not None), default=None)
             for name, pair in pairs.items()}  # fmt: skip
    return job.model_copy(update=lower)
