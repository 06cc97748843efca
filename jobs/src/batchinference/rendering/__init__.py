"""Renders the Kubernetes objects that run a BatchInference, as dicts, without side effects."""

from batchinference.rendering.backstop import Backstop
from batchinference.rendering.defaults import effective
from batchinference.rendering.kueue import QUEUE_LABEL
from batchinference.rendering.memory import with_memory
from batchinference.rendering.names import (
    ATTEMPT_LABEL,
    CLUSTER_LABEL,
    DEVICES_LABEL,
    GENERATION,
    MANAGED_BY,
    MANAGER,
    NAME_LABEL,
    NODE_TYPE_LABEL,
    POD_GROUP_LABEL,
    RELEASED,
    Names,
)
from batchinference.rendering.objects import Owner
from batchinference.rendering.rayjob import (
    KEEP_SECONDS,
    POD_TEMPLATE,
    RAY_API_VERSION,
    RAY_CLUSTER,
    RAY_JOB,
    attempt_objects,
    patched_pods,
)
from batchinference.rendering.token_secret import token_secret

__all__ = [
    "ATTEMPT_LABEL",
    "CLUSTER_LABEL",
    "DEVICES_LABEL",
    "GENERATION",
    "KEEP_SECONDS",
    "MANAGED_BY",
    "MANAGER",
    "NAME_LABEL",
    "NODE_TYPE_LABEL",
    "POD_GROUP_LABEL",
    "POD_TEMPLATE",
    "QUEUE_LABEL",
    "RAY_API_VERSION",
    "RAY_CLUSTER",
    "RAY_JOB",
    "RELEASED",
    "Backstop",
    "Names",
    "Owner",
    "attempt_objects",
    "effective",
    "patched_pods",
    "token_secret",
    "with_memory",
]
