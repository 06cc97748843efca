"""What one replica of a step is given."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.accelerators import ResourceName, misspelt
from batchinference.spec.base import ACCELERATOR, Cpus, SpecModel, rules
from batchinference.spec.quantities import Memory

_FIELDS = {"CPU": "cpu", "GPU": "gpu", "memory": "memory", "object_store_memory": "memory"}
"""Resources that Ray counts by itself, and the fields by which they are asked for."""
_NOT_CUSTOM = "'{}' is no custom resource: there is the field '{}'"
_NO_DEVICE = "'acceleratorType' says which devices: ask for some with gpu or custom"


class Resources(SpecModel):
    """What one replica gets."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(self.acceleratorType) || (has(self.gpu) && self.gpu > 0) || "
                "(has(self.custom) && size(self.custom) > 0)",
                _NO_DEVICE,
            ),
            *(
                (
                    f"!has(self.custom) || !('{name}' in self.custom)",
                    _NOT_CUSTOM.format(name, field),
                )
                for name, field in _FIELDS.items()
            ),
        )
    )

    cpu: Cpus = 1.0
    """CPUs; a replica computes with as many threads."""
    gpu: Annotated[int, Field(ge=0, le=64)] = 0
    """GPUs. A machine that has none runs the step on its CPU, a cluster waits for one."""
    memory: Memory | None = None
    """Memory of the replica's pod, as Kubernetes writes it (8Gi), its object store included. A
    machine starts no more replicas than there is memory for."""
    accelerator_type: Annotated[str, Field(pattern=ACCELERATOR, max_length=63)] | None = None
    """Which GPU, or other device, as Ray names it: T4, A100, Ascend910B. A cluster needs a profile
    of that name, which says where such devices are; a machine takes what it has."""
    custom: Annotated[
        dict[ResourceName, Annotated[int, Field(ge=1, le=10000)]], Field(max_length=8)
    ] = {}
    """Other resources by Ray's names of them, such as NPU: 1. A cluster needs a profile for each. A
    machine that has too few runs the step without them, on its CPU where they are devices."""

    @model_validator(mode="after")
    def _check(self) -> Resources:
        for name in sorted(self.custom.keys() & _FIELDS.keys()):
            raise PydanticCustomError("custom_name", _NOT_CUSTOM.format(name, _FIELDS[name]), {})
        if self.accelerator_type is not None:
            self._check_accelerator(self.accelerator_type)
        return self

    def _check_accelerator(self, name: str) -> None:
        if not (self.gpu or self.custom):
            raise PydanticCustomError("accelerator", _NO_DEVICE, {})
        if known := misspelt(name):
            message = "Ray knows no acceleratorType '{name}'; did you mean '{known}'?"
            raise PydanticCustomError("accelerator", message, {"name": name, "known": known})
