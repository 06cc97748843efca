"""Reads and writes Kubernetes quantities."""

from __future__ import annotations

import re

from batchinference.spec.quantities import memory_bytes

DISK_SPACE = "ephemeral-storage"
"""The name of the disk space of a container among its resources."""


def cpu_quantity(cpus: float) -> str:
    """Return CPUs as a Kubernetes quantity: 2, 500m. Never 0, which would mean no limit."""
    return str(int(cpus)) if cpus == int(cpus) else f"{max(1, round(cpus * 1000))}m"


def smaller_memory(wanted: str | None, limit: str) -> str:
    """Return the wanted memory, at most the limit. The default is the limit."""
    if wanted is None or memory_bytes(wanted) > memory_bytes(limit):
        return limit
    return wanted


_SUFFIXES = {
    **{"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12},
    **{"P": 1e15, "E": 1e18, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40},
    **{"Pi": 2.0**50, "Ei": 2.0**60},
}
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]{0,2})")


def cpus_of(quantity: str | float) -> float:
    """Return the CPUs of a Kubernetes quantity, such as 2, 500m, 1k, 100u or 1e3.

    Raises ValueError if it is not a quantity.
    """
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None or match[2] not in _SUFFIXES:
        raise ValueError(f"not a quantity: {quantity}")
    return float(match[1]) * _SUFFIXES[match[2]]
