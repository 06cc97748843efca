"""Computes the number of concurrent write tasks and the CPUs that they need."""

from __future__ import annotations

from itertools import count

from batchinference.plan.stages import WRITE_CPUS

MIN_WRITERS, CPUS_A_WRITER = 2, 2


def writers(cpus: float) -> int:
    """Return the maximum number of concurrent write tasks for this number of CPUs.

    For an operator without a concurrency limit, Ray Data reserves up to a quarter of all CPUs. That
    is far too much for write tasks: of three CPUs, it would leave one for tasks that compute. With
    a limit, Ray Data reserves only the CPUs that this number of tasks can use.
    """
    return max(MIN_WRITERS, int(cpus / CPUS_A_WRITER))


def with_writers(cpus: int) -> int:
    """Return the CPUs that Ray must have so that `cpus` CPUs remain besides the write tasks."""
    return next(all_ for all_ in count(cpus) if all_ - writers(all_) * WRITE_CPUS >= cpus)
