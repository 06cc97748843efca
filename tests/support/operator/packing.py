"""Whether things fit into boxes, found by trying every way: slow, plain and surely right."""

from __future__ import annotations

ROUNDING = 1e-6
"""How much of a CPU may be lost by adding numbers that are no sums of powers of two."""


def fits(demands: list[float], size: float, boxes: int) -> bool:
    """Whether so many boxes of one size can hold all demands, each whole in one box."""
    return _place(sorted(demands, reverse=True), [size] * boxes)


def fewest_boxes(demands: list[float], size: float) -> int:
    """The least number of boxes that hold all demands, none of which is larger than a box."""
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
