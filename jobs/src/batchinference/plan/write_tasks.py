"""Computes the number of concurrent write tasks, and the CPUs that they need."""

from __future__ import annotations

from itertools import count

from batchinference.plan.stages import WRITE_CPUS

MIN_WRITERS, CPUS_PER_WRITER = 2, 2


def writers(cpus: float) -> int:
    """Return the maximum number of concurrent write tasks for this number of CPUs.

    With this limit, Ray Data reserves only the CPUs that so many tasks can use. Without a limit, it
    reserves up to a quarter of all CPUs for an operator, which is too much for write tasks: of
    three CPUs, only one would remain for computing.
    """
    return max(MIN_WRITERS, int(cpus / CPUS_PER_WRITER))


def cpus_with_writers(cpus: int, others: float = 0.0) -> int:
    """Return the smallest number of CPUs for Ray that leaves `cpus` CPUs free besides the write
    tasks and `others`, a fraction of a CPU."""
    used = (total - writers(total) * WRITE_CPUS - others for total in count(cpus))
    return next(cpus + more for more, left in enumerate(used) if left >= cpus)
