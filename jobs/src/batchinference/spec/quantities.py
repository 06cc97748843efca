"""Quantities of memory as Kubernetes writes them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from batchinference.spec.base import MEMORY

LEAST_MEMORY = "512Mi"
"""What Ray's own processes need in a pod: with less they are killed before any work begins."""
LEAST_HEAD_MEMORY = "1Gi"
"""What the head needs for Ray's services, the object store and the driver."""
LEAST_REQUEST = "1Mi"
_UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def memory_bytes(quantity: str) -> int:
    """Bytes of a quantity such as 8Gi."""
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", quantity)
    if match is None or match.group(2) not in _UNITS:
        raise ValueError(f"not a quantity of memory: {quantity}")
    return int(float(match.group(1)) * _UNITS[match.group(2)])


def _enough_for_ray(quantity: str) -> str:
    return _at_least(quantity, LEAST_MEMORY, "Ray itself needs that much")


def _enough_for_head(quantity: str) -> str:
    return _at_least(quantity, LEAST_HEAD_MEMORY, "Ray's services and the driver need that much")


def _some(quantity: str) -> str:
    return _at_least(quantity, LEAST_REQUEST, "a unit is missing")


def _at_least(quantity: str, least: str, why: str) -> str:
    if memory_bytes(quantity) < memory_bytes(least):
        known = {"least": least, "why": why}
        raise PydanticCustomError("memory", "expected at least {least} ({why})", known)
    return quantity


Memory = Annotated[str, Field(pattern=MEMORY, max_length=16), AfterValidator(_enough_for_ray)]
"""The memory of a pod."""
HeadMemory = Annotated[str, Field(pattern=MEMORY, max_length=16), AfterValidator(_enough_for_head)]
"""The memory of the head pod."""
MemoryRequest = Annotated[str, Field(pattern=MEMORY, max_length=16), AfterValidator(_some)]
"""The memory that a pod asks of the scheduler."""
