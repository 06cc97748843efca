"""Parts of a pod that stand in several places of the specification, as Kubernetes has them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.base import ENV_NAME, SpecModel

ObjectName = Annotated[str, Field(min_length=1, max_length=253)]
Key = Annotated[str, Field(min_length=1, max_length=253)]
EnvName = Annotated[str, Field(pattern=ENV_NAME, max_length=128)]
LabelKey = Annotated[str, Field(max_length=316)]
LabelValue = Annotated[str, Field(max_length=63)]
NodeSelector = Annotated[dict[LabelKey, LabelValue], Field(max_length=32)]


class KeyRef(SpecModel):
    name: ObjectName
    """The object's name."""
    key: Key
    """The key in it."""


class EnvSource(SpecModel):
    """Where the value comes from: exactly one of the two."""

    secret_key_ref: KeyRef | None = None
    """A key of a Secret."""
    config_map_key_ref: KeyRef | None = None
    """A key of a ConfigMap."""

    @model_validator(mode="after")
    def _check(self) -> EnvSource:
        if (self.secret_key_ref is None) == (self.config_map_key_ref is None):
            raise PydanticCustomError(
                "env_source", "give exactly one of secretKeyRef and configMapKeyRef", {}
            )
        return self


class EnvVar(SpecModel):
    name: EnvName
    """The variable's name."""
    value: Annotated[str, Field(max_length=4096)] | None = None
    """Its value. Keep secrets in a Secret and name it in valueFrom."""
    value_from: EnvSource | None = None
    """A Secret or ConfigMap that holds the value."""

    @model_validator(mode="after")
    def _check(self) -> EnvVar:
        if (self.value is None) == (self.value_from is None):
            raise PydanticCustomError("env_value", "give exactly one of value and valueFrom", {})
        return self


class Toleration(SpecModel):
    """A taint that pods tolerate."""

    key: Annotated[str, Field(max_length=316)] | None = None
    """The taint's key; every key when absent (with operator Exists)."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """How key and value match."""
    value: Annotated[str, Field(max_length=63)] | None = None
    """The taint's value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect; every effect when absent."""
    toleration_seconds: Annotated[int, Field(ge=0, le=10**9)] | None = None
    """How long a NoExecute taint is tolerated."""

    @model_validator(mode="after")
    def _check(self) -> Toleration:
        # what the API server would say of every pod, long after the job was taken
        if not self.key and self.operator != "Exists":
            raise PydanticCustomError("toleration", "without a key, operator must be Exists", {})
        if self.value and self.operator == "Exists":
            raise PydanticCustomError("toleration", "'value' is for operator Equal", {})
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            message = "'tolerationSeconds' is for effect NoExecute"
            raise PydanticCustomError("toleration", message, {})
        return self
