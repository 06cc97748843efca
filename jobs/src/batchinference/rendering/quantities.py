"""Quantities as Kubernetes writes them."""

from __future__ import annotations

from batchinference.spec.quantities import memory_bytes


def cpu_quantity(cpus: float) -> str:
    """CPUs as Kubernetes writes them: 2, 500m. Never 0, which would stand for no limit."""
    return str(int(cpus)) if cpus == int(cpus) else f"{max(1, round(cpus * 1000))}m"


def smaller_memory(wanted: str | None, limit: str) -> str:
    """What is asked for, but never more than the limit, which is also the default."""
    if wanted is None or memory_bytes(wanted) > memory_bytes(limit):
        return limit
    return wanted


def cpus_of(quantity: str | float) -> float:
    """CPUs of a quantity such as 2, 500m or 0.5."""
    text = str(quantity)
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
