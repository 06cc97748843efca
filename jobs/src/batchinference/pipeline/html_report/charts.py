"""Computes the coordinates of the charts of a report."""

import math
from dataclasses import dataclass

from batchinference.spec.progress import RowsOverTime

WIDTH, HEIGHT = 720, 220
"""The size in pixels of the plot of a line chart, without the labels of its axes."""
TICKS = 4
_STEPS = (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10)
"""The largest value of the row axis is one of these numbers times a power of ten."""
_GAPS = [number * unit for unit in (1, 60, 3600) for number in (1, 2, 5, 10, 15, 30)]
"""The possible distances between labels of the time axis, in seconds."""


@dataclass(frozen=True)
class Tick:
    """A mark of an axis: its position in pixels and its value."""

    at: float
    value: float


@dataclass(frozen=True)
class LineChart:
    """A line through points. `line` and `area` are paths of SVG."""

    line: str
    area: str
    end: tuple[float, float]
    across: list[Tick]
    up: list[Tick]


def rows_chart(history: RowsOverTime) -> LineChart | None:
    """Return the chart of rows over time; None if there are too few points for a line."""
    pairs = list(zip(history.seconds, history.rows, strict=False))
    if len(pairs) < 2 or pairs[-1][0] <= 0 or pairs[-1][1] <= 0:
        return None
    longest = max(seconds for seconds, _ in pairs)
    top = _rounded_up(max(rows for _, rows in pairs))
    points = [(WIDTH * seconds / longest, HEIGHT * (1 - rows / top)) for seconds, rows in pairs]
    line = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    area = f"{line} L{points[-1][0]:.1f},{HEIGHT} L{points[0][0]:.1f},{HEIGHT} Z"
    gap = next((gap for gap in _GAPS if gap * (TICKS + 1) >= longest), longest / TICKS)
    times = [gap * n for n in range(int(longest / gap) + 1)]
    across = [Tick(WIDTH * time / longest, time) for time in times]
    up = [Tick(HEIGHT * (1 - n / TICKS), top * n / TICKS) for n in range(TICKS + 1)]
    return LineChart(line, area, points[-1], across, up)


def _rounded_up(value: float) -> float:
    """Return the next larger number that gives short labels if it is divided by TICKS."""
    unit = 10.0 ** math.floor(math.log10(value))
    return max(TICKS, next(step * unit for step in _STEPS if step * unit >= value))
