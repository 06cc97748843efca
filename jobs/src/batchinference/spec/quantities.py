"""Kubernetes quantities, such as memory sizes and numbers of CPUs: types of fields, conversions."""

import math
import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from batchinference.spec.base import MEMORY, invalid, required
from batchinference.spec.value_fixes import memory_fix, quantity_fix, refuse_numbers

MIN_MEMORY = "512Mi"
"""Minimum memory of a pod. Ray's own processes need it to start."""
MIN_HEAD_MEMORY = "1Gi"
"""Minimum memory of the head, for Ray's services, the object store and the driver."""
EXPECTED = "a quantity of memory such as 512Mi or 8Gi"
NUMBER = r"^([0-9]{1,9}(\.[0-9]{1,3})?|[0-9]{1,12}m)$"
DISK_SPACE = "ephemeral-storage"
"""The name of the Kubernetes resource for the disk space of a container."""
_UNITS = {
    **{"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12},
    **{"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40},
}
"""The factors of the memory units that a job can use."""
_SUFFIXES = {
    **{"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12},
    **{"P": 1e15, "E": 1e18, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40},
    **{"Pi": 2.0**50, "Ei": 2.0**60},
}
"""The factors of all units of Kubernetes."""
_ANY_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]{0,2})")


def memory_bytes(quantity: str) -> int:
    """Return the number of bytes of a quantity such as 8Gi. Raises ValueError if it is invalid."""
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", quantity)
    if match is None or match.group(2) not in _UNITS:
        raise ValueError(f"not a quantity of memory: {quantity}")
    return int(float(match.group(1)) * _UNITS[match.group(2)])


def memory_quantity(size: float) -> str:
    """Return bytes as a Kubernetes quantity, rounded up to whole Mi."""
    mebibytes = math.ceil(size / 2**20)
    return f"{mebibytes}Mi" if mebibytes % 1024 else f"{mebibytes // 1024}Gi"


def cpu_quantity(cpus: float) -> str:
    """Return CPUs as a Kubernetes quantity such as 2 or 500m. The minimum is 1m: 0m is no limit."""
    return str(int(cpus)) if cpus == int(cpus) else f"{max(1, round(cpus * 1000))}m"


def smaller_memory(wanted: str | None, limit: str) -> str:
    """Return the lower one of the wanted memory and the limit; the limit if `wanted` is None."""
    return limit if wanted is None or memory_bytes(wanted) > memory_bytes(limit) else wanted


def cpus_of(quantity: str | float) -> float:
    """Return the CPUs of a Kubernetes quantity, such as 2, 500m, 1k, 100u or 1e3. Raises ValueError
    if it is not a quantity."""
    match = _ANY_QUANTITY.fullmatch(str(quantity))
    if match is None or match[2] not in _SUFFIXES:
        raise ValueError(f"not a quantity: {quantity}")
    return float(match[1]) * _SUFFIXES[match[2]]


def _at_least(minimum: str, reason: str) -> AfterValidator:
    return required(
        lambda quantity: memory_bytes(quantity) >= memory_bytes(minimum),
        f"expected at least {minimum} ({reason})",
    )


_MAX_SIZE = 16
"""Maximum length of a size."""
_SIZE = Field(pattern=MEMORY, max_length=_MAX_SIZE)
_WITH_UNIT = refuse_numbers(EXPECTED, memory_fix)
Memory = Annotated[str, _SIZE, _WITH_UNIT, _at_least(MIN_MEMORY, "Ray itself needs that much")]
"""The memory of a pod."""
HeadMemory = Annotated[
    str,
    _SIZE,
    _WITH_UNIT,
    _at_least(MIN_HEAD_MEMORY, "Ray's services and the driver need that much"),
]
"""The memory of the head pod."""
MemoryRequest = Annotated[str, _SIZE, _WITH_UNIT, _at_least("1Mi", "a unit is missing")]
"""The memory request of a pod."""


def _bytes_of(value: object) -> object:
    """Return an integer, or the bytes of a size such as 64Mi. Other values are refused."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and len(value) <= _MAX_SIZE and re.fullmatch(MEMORY, value):
        return memory_bytes(value)
    fix = memory_fix(value) if isinstance(value, str) else ""
    raise invalid(f"expected a size such as 64Mi or 2Gi, or a number of bytes{fix}")


Size = (
    BeforeValidator(_bytes_of),
    Field(
        json_schema_extra={"type": ["integer", "string"], "pattern": MEMORY, "maxLength": _MAX_SIZE}
    ),
)
"""Annotations of a number of bytes that may also be written as a size. The CRD leaves the type
open, as for a quantity."""


def _number_of(value: object) -> object:
    """Return the number of a quantity such as 500m; any other value unchanged. Raises a validation
    error for a text that is no quantity, and for a number with more than three decimal places."""
    if isinstance(value, str) and re.fullmatch(NUMBER, value):
        number = int(value[:-1]) / 1000 if value.endswith("m") else float(value)
        return int(number) if number.is_integer() else number
    inexact = isinstance(value, float) and value != round(value, 3)
    if isinstance(value, str) or inexact:
        raise invalid(
            "expected a number with at most three decimal places such as 2 or 0.5, or a quantity "
            f"such as 500m{quantity_fix(value)}"
        )
    return value


Quantity = (
    BeforeValidator(_number_of),
    Field(json_schema_extra={"type": ["number", "string"], "pattern": NUMBER, "maxLength": 16}),
)
"""Annotations of a number that may also be written as a quantity. The CRD leaves the type open,
because Kubernetes has no type that allows integers, fractions and texts."""
Cpus = Annotated[float, Field(gt=0, le=1024), *Quantity]


Devices = Annotated[
    float,
    Field(ge=0, le=64),
    *Quantity,
    required(
        lambda devices: devices <= 1 or devices.is_integer(),
        "expected a whole number, or a part of one device such as 0.25",
    ),
]
"""A whole number of devices, or a fraction of one device. Ray supports nothing else."""
