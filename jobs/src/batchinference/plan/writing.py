"""Computes the number of concurrent write tasks, and the CPUs that they need."""

from __future__ import annotations

from itertools import count

from batchinference.plan.stages import WRITE_CPUS

MIN_WRITERS, CPUS_PER_WRITER = 2, 2


def writers(cpus: float) -> int:
    """Return the maximum number of concurrent write tasks for this number of CPUs.

    Without a concurrency limit, Ray Data reserves up to a quarter of all CPUs for an operator. This
    is too much for write tasks: of three CPUs, only one would remain for computing. With a limit,
    Ray Data reserves only the CPUs that this number of tasks can use.
    """
    return max(MIN_WRITERS, int(cpus / CPUS_PER_WRITER))


def cpus_with_writers(cpus: int, others: float = 0.0) -> int:
    """Return the number of CPUs with which Ray has `cpus` CPUs left after the write tasks and
    `others`, a part of a CPU."""
    used = (total - writers(total) * WRITE_CPUS - others for total in count(cpus))
    return next(cpus + more for more, left in enumerate(used) if left >= cpus)
