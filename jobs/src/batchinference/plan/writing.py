"""Write tasks beside all others: how many there are, and the CPUs that they take."""

from __future__ import annotations

from itertools import count

from batchinference.plan.stages import WRITE_CPUS

MIN_WRITERS, CPUS_A_WRITER = 2, 2


def writers(cpus: float) -> int:
    """Write tasks at a time, at most, where there are so many CPUs.

    Of an operator without such a bound Ray Data keeps up to a quarter of all CPUs free, which is
    far too much for these: of three CPUs it would leave one to tasks that compute. With a bound it
    keeps no more than so many tasks can take.
    """
    return max(MIN_WRITERS, int(cpus / CPUS_A_WRITER))


def with_writers(cpus: int) -> int:
    """How many CPUs Ray must have so that all tasks but those that write are left so many."""
    return next(all_ for all_ in count(cpus) if all_ - writers(all_) * WRITE_CPUS >= cpus)
