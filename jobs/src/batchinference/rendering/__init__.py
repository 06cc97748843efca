"""Renders the Kubernetes objects that run a BatchInference, as dicts, without side effects."""

from batchinference.rendering.backstop import Backstop
from batchinference.rendering.defaults import effective
from batchinference.rendering.kueue import QUEUE_LABEL
from batchinference.rendering.names import (
    ATTEMPT_LABEL,
    GPUS_LABEL,
    MANAGED_BY,
    MANAGER,
    NAME_LABEL,
    Names,
)
from batchinference.rendering.objects import Owner, config_map, token_secret
from batchinference.rendering.rayjob import RAY_API_VERSION, RAY_JOB, ray_job

__all__ = [
    "ATTEMPT_LABEL",
    "GPUS_LABEL",
    "MANAGED_BY",
    "MANAGER",
    "NAME_LABEL",
    "QUEUE_LABEL",
    "RAY_API_VERSION",
    "RAY_JOB",
    "Backstop",
    "Names",
    "Owner",
    "config_map",
    "effective",
    "ray_job",
    "token_secret",
]
