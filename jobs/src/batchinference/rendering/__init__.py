"""Renders the Kubernetes objects that run a BatchInference, as dicts, without side effects."""

from batchinference.rendering.config_map import token_secret
from batchinference.rendering.defaults import with_platform_defaults
from batchinference.rendering.fallback import choices_of, with_choice
from batchinference.rendering.faulty_nodes import without_nodes
from batchinference.rendering.kueue import QUEUE_LABEL
from batchinference.rendering.names import (
    ATTEMPT_LABEL,
    CHOICE,
    CLUSTER_LABEL,
    DEVICE_HOUR,
    DEVICES_LABEL,
    EVICTABLE,
    GENERATION,
    MANAGER,
    NAME_LABEL,
    NODE_TYPE_LABEL,
    POD_GROUP_LABEL,
    RAY_CONTAINER,
    RELEASED,
    Names,
    Owner,
    running_containers,
    templates_of,
)
from batchinference.rendering.out_of_memory import with_memory
from batchinference.rendering.pods import HEAD_BUDGET, head_budget
from batchinference.rendering.rayjob import (
    KEEP_SECONDS,
    RAY_API_VERSION,
    RAY_CLUSTER,
    RAY_JOB,
    KubeRayDeadlines,
    attempt_objects,
)
