"""Options of `ray start` that a job may set."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from batchinference.spec.base import START_VALUE

OPTIONS = (
    *("object-store-memory", "object-spilling-directory", "plasma-directory", "memory"),
    *("min-worker-port", "max-worker-port", "worker-port-list"),
    *("object-manager-port", "node-manager-port", "runtime-env-agent-port"),
    *("dashboard-agent-grpc-port", "include-log-monitor", "log-style", "log-color"),
)
"""The others are set by BatchInference or KubeRay, or open the node to other clients."""


def _known(name: str) -> str:
    if name not in OPTIONS:
        message = "not an option of `ray start` that a job may set; there are {known}"
        raise PydanticCustomError("start_option", message, {"known": ", ".join(OPTIONS)})
    return name


RayStartParams = Annotated[
    dict[
        Annotated[str, Field(max_length=64), AfterValidator(_known)],
        Annotated[str, Field(pattern=START_VALUE, max_length=256)],
    ],
    Field(max_length=32),
]
"""Options by name. KubeRay puts the values into a shell command, hence their pattern."""
