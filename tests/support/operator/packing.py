"""Bin packing by exhaustive search, a slow and simple reference implementation."""

from __future__ import annotations

ROUNDING = 1e-6
"""Tolerance in CPUs for rounding errors in sums of floats."""


def fits(demands: list[float], size: float, boxes: int) -> bool:
    """Return whether `boxes` boxes of one size can hold all demands, without splitting a demand."""
    return _place(sorted(demands, reverse=True), [size] * boxes)


def fewest_boxes(demands: list[float], size: float) -> int:
    """Return the minimum number of boxes that hold all demands. No demand may exceed a box."""
    return next(boxes for boxes in range(len(demands) + 1) if fits(demands, size, boxes))


def _place(demands: list[float], free: list[float]) -> bool:
    if not demands:
        return True
    first, *others = demands
    tried: set[float] = set()
    for index, room in enumerate(free):
        if first > room + ROUNDING or room in tried:
            continue
        tried.add(room)
        rest = [*free[:index], room - first, *free[index + 1 :]]
        if _place(others, rest):
            return True
    return False
