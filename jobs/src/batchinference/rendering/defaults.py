"""The platform's defaults under a job's own cluster settings."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel

from batchinference.spec.cluster import Cluster
from batchinference.spec.job import BatchInference

Model = TypeVar("Model", bound=BaseModel)


def effective(job: BatchInference, defaults: Cluster) -> BatchInference:
    """The job with each cluster setting that it leaves out taken from the defaults.

    Objects (head, workers, requests) are filled in field by field, lists and maps are taken whole.
    """
    cluster = _filled(job.spec.cluster, defaults)
    return job.model_copy(update={"spec": job.spec.model_copy(update={"cluster": cluster})})


def _filled(own: Model, defaults: Model) -> Model:
    update = {}
    for name in type(own).model_fields:
        mine, other = getattr(own, name), getattr(defaults, name)
        if isinstance(mine, BaseModel) and isinstance(other, BaseModel):
            update[name] = _filled(mine, other)
        elif mine in (None, [], {}):
            update[name] = other
    return own.model_copy(update=update)
