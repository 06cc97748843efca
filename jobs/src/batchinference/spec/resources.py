"""The resources of one replica of a step, with the names of types of devices."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

from batchinference.spec.base import ACCELERATOR, SpecModel, Unique, invalid, required
from batchinference.spec.quantities import Cpus, Devices, Memory, MemoryRequest

RAY_NAMES = (
    *("K80", "P4", "P100", "V100", "T4", "A10G", "L4", "L40S", "RTX-PRO-6000"),
    *("A100", "A100-40G", "A100-80G", "H20", "H100", "H200"),
    *("B200", "B300", "GB200", "GB300"),
    *("AMD-Instinct-MI100", "AMD-Instinct-MI210", "AMD-Instinct-MI250X-MI250"),
    *("AMD-Instinct-MI300A", "AMD-Radeon-R9-200-HD-7900", "AMD-Radeon-HD-7900"),
    *("Intel-GPU-Max-1100", "Intel-GPU-Max-1550", "Intel-GAUDI"),
    *("Ascend910B", "Ascend910B4", "MXC500", "MXC550", "FURIOSA_RNGD"),
    *("MOBILINT_ARIES", "MOBILINT_REGULUS", "aws-neuron-core"),
    *("TPU-V2", "TPU-V3", "TPU-V4", "TPU-V5P", "TPU-V5LITEPOD", "TPU-V6E", "TPU-V7X"),
    *("Apple-Silicon", "M1", "M1-Pro", "M1-Max", "M1-Ultra"),
    *("M2", "M2-Pro", "M2-Max", "M2-Ultra", "M3", "M3-Pro", "M3-Max"),
)
"""The names in `ray.util.accelerators` of Ray 2.60. Ray also detects other accelerators, such as
`Ascend910B2`, and uses the names that their drivers report."""


def wrong_case_of(name: str) -> str | None:
    """Return the accelerator name that differs from `name` only in upper and lower case, or None.
    For a name in the wrong case, Ray would wait forever for a matching node."""
    if name in RAY_NAMES:
        return None
    return next((known for known in RAY_NAMES if known.lower() == name.lower()), None)


ResourceName = Annotated[
    str,
    Field(min_length=1, max_length=63),
    required(
        re.compile(ACCELERATOR).fullmatch,
        "expected letters, digits, '-', '_' and '.', a letter or digit at both ends",
    ),
]


OF_PODS = {"ephemeral_storage"}
"""Fields that local runs ignore: they only apply to pods."""
_FIELDS = {"CPU": "cpu", "GPU": "gpu", "memory": "memory", "object_store_memory": "memory"}
"""Built-in resources of Ray, and the fields that request them."""
_NOT_CUSTOM = "'{}' is not a custom resource. Use the field '{}'"
_NO_DEVICE = (
    "'acceleratorType' is set, but no devices are requested. Request them in 'gpu' or 'custom'"
)


_NAME = Field(pattern=ACCELERATOR, max_length=63)


def _allow_text_or_list(schema: dict[str, Any]) -> None:
    schema.clear()  # a value is a text or a list, and a CRD has no type that allows both
    schema.update({"type": ["string", "array"], "pattern": ACCELERATOR, "maxLength": 63})


def _as_list(value: object) -> object:
    """Return a name as a list; a list unchanged. Raises a validation error for another value."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return value
    raise invalid("expected a name in quotes, or a list of names such as [H100, A100]")


AcceleratorTypes = Annotated[
    list[Annotated[str, _NAME]],
    Unique,
    BeforeValidator(_as_list),
    PlainSerializer(lambda names: names[0] if len(names) == 1 else names),
    Field(min_length=1, max_length=8, json_schema_extra=_allow_text_or_list),
]
"""A name, or a list of names. The CRD leaves the type open: it has no type for both."""


class Resources(SpecModel):
    """The resources of one replica."""

    cpu: Cpus = 1.0
    """Number of CPUs, which is also the number of compute threads of a replica."""
    gpu: Devices = 0
    """Number of GPUs. With a fraction such as 0.25, four replicas share a GPU, and each gets this
    fraction of the memory of the GPU. On a local machine without a GPU, the step runs on the CPU.
    On a cluster, the step waits for a GPU."""
    memory: Memory | None = None
    """The memory of the replica in its pod, including the object store, as a Kubernetes quantity
    such as 8Gi. A local machine starts only as many replicas as its memory allows."""
    ephemeral_storage: MemoryRequest | None = None
    """Disk space that the replicas of a pod need together, such as for a downloaded model. Pods
    request it in addition to `cluster.ephemeralStorage`. Local runs ignore it."""
    accelerator_types: AcceleratorTypes | None = Field(None, alias="acceleratorType")
    """Ray's name of the type of GPU or other device, such as T4, A100 or Ascend910B4. A cluster
    needs a profile with this name in `cluster.profiles`, or in the defaults of the platform. A
    local machine uses the devices that it has. With a list such as `[H100, A100]`, each attempt
    uses one type. Without capacity, the next attempt uses the next type (`cluster.fallback`)."""
    custom: Annotated[
        dict[ResourceName, Annotated[int, Field(ge=1, le=10000)]], Field(max_length=8)
    ] = {}
    """Custom resources of Ray by name, such as `NPU: 1`. A cluster needs a profile for each. If a
    local machine has too few, the step runs without them: on the CPU if they are devices."""

    def _check(self) -> None:
        for name in sorted(self.custom.keys() & _FIELDS.keys()):
            raise invalid(_NOT_CUSTOM.format(name, _FIELDS[name]))
        if self.accelerator_types and not (self.gpu or self.custom):
            raise invalid(_NO_DEVICE)
        for name in self.accelerator_types or ():
            if known := wrong_case_of(name):
                raise invalid(f"Ray knows no acceleratorType '{name}'; did you mean '{known}'?")

    @property
    def per_device(self) -> int:
        """Return how many replicas share a device."""
        return int(1 / self.gpu + 1e-9) if 0 < self.gpu < 1 else 1

    @property
    def has_own_pods(self) -> bool:
        """Return whether the replicas need pods outside of the group `cpu`."""
        return bool(self.gpu or self.memory or self.custom)

    @property
    def accelerator_type(self) -> str | None:
        """Return the first type of the devices."""
        return self.accelerator_types[0] if self.accelerator_types else None
