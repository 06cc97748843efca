"""How much a job may take of a cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from batchinference.spec.base import SpecModel


class Limits(SpecModel):
    """How much a job may take. A job that could take more is refused before anything starts, and
    one that has used up its GPU hours is stopped. Without a value there is no such limit. Where the
    platform's defaults have limits too, the lower of the two counts."""

    gpu: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """GPUs and other devices of all worker groups at their largest: all that profiles request of
    Kubernetes or call a device."""
    cpu: Annotated[float, Field(gt=0, le=10_000_000)] | None = None
    """CPUs of the head and of all worker groups at their largest."""
    gpu_hours: Annotated[float, Field(gt=0, le=100_000_000)] | None = None
    """Hours of GPUs and other devices of all attempts together. When they are used up, the job
    fails as `LimitExceeded`; what it has written stays."""

    priority: Annotated[int, Field(ge=-1_000_000_000, le=1_000_000_000)] | None = None
    """The highest `spec.priority`."""


def lowest(own: Limits, platform: Limits) -> Limits:
    """The lower one of each two limits."""
    both = {name: (getattr(own, name), getattr(platform, name)) for name in Limits.model_fields}
    lower = {name: min((one for one in pair if one is not None), default=None)
             for name, pair in both.items()}  # fmt: skip
    return own.model_copy(update=lower)
