"""Quantities as Kubernetes writes them."""

from __future__ import annotations

import re

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


def cpu_quantity(cpus: float) -> str:
    """CPUs as Kubernetes writes them: 2, 500m. Never 0, which would stand for no limit."""
    return str(int(cpus)) if cpus == int(cpus) else f"{max(1, round(cpus * 1000))}m"


def smaller_memory(wanted: str | None, limit: str) -> str:
    """What is asked for, but never more than the limit, which is also the default."""
    if wanted is None or memory_bytes(wanted) > memory_bytes(limit):
        return limit
    return wanted
