"""Computes the number of pods for a set of tasks and actors."""

from __future__ import annotations


def pods_needed(cpus: list[float], size: float) -> int:
    """Return the number of pods of `size` CPUs that hold all of these CPU demands.

    Demands are placed largest first, each on the first pod that has room. No demand may be larger
    than a pod.
    """
    free: list[float] = []
    for demand in sorted(cpus, reverse=True):
        for index, room in enumerate(free):
            if demand <= room + 1e-9:
                free[index] = room - demand
                break
        else:
            free.append(size - demand)
    return len(free)
