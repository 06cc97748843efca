"""The BatchInference resource."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.base import DNS_LABEL, SpecModel
from batchinference.spec.cluster import Cluster
from batchinference.spec.error_policy import ErrorPolicy
from batchinference.spec.read import Read, ReadFiles
from batchinference.spec.steps import Step
from batchinference.spec.write import Write

GROUP = "batchinference.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "BatchInference"
PLURAL = "batchinferences"
MAX_NAME = 40
"""KubeRay allows a RayJob 47 characters; an attempt's number takes the rest."""


class BatchInferenceSpec(SpecModel):
    """What to read, which steps to run over it, and where to write."""

    read: Read
    """The input."""
    steps: Annotated[list[Step], Field(max_length=32)] = []
    """What is done with the rows, in this order."""
    write: Write
    """The output."""
    errors: ErrorPolicy = ErrorPolicy()
    """What happens to bad rows."""
    cluster: Cluster = Cluster()
    """Settings that only a cluster uses."""

    @model_validator(mode="after")
    def _check(self) -> BatchInferenceSpec:
        seen: set[str] = set()
        for step in self.steps:
            if step.name in seen:
                raise PydanticCustomError(
                    "step_name", "two steps are named '{name}'", {"name": step.name}
                )
            seen.add(step.name)
            if step.label_from_path and not self.read.include_paths:
                way_out = (
                    "set read.options.include_paths to true"
                    if isinstance(self.read, ReadFiles)
                    else f"rows of {self.read.format} come from no file"
                )
                raise PydanticCustomError(
                    "label_path",
                    "step '{name}' needs the paths: {way_out}",
                    {"name": step.name, "way_out": way_out},
                )
        return self


class Metadata(BaseModel):
    """The object's metadata. Only the name matters to a laptop."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: Annotated[str, Field(pattern=DNS_LABEL, max_length=MAX_NAME)]
    """The job's name."""
    namespace: str | None = None
    """Where it lives on a cluster."""


class BatchInference(SpecModel):
    """One job of offline inference."""

    api_version: Literal["batchinference.dev/v1alpha1"]
    """The version of this API."""
    kind: Literal["BatchInference"]
    """The kind of the object."""
    metadata: Metadata
    """The object's metadata."""
    spec: BatchInferenceSpec
    """What to read, which steps to run over it, and where to write."""
    status: dict[str, Any] | None = None
    """Written by the operator; ignored here."""
