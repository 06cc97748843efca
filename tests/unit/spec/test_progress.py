"""The one model of progress: rows, percentage, speed, remaining time and their texts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batchinference.spec.durations import duration_text
from batchinference.spec.progress import MAX_POINTS, MAX_ROWS, Progress, ProgressHistory

ROWS = st.integers(0, 2000)
READINGS = st.lists(st.tuples(st.floats(-10, 100), st.integers(0, 500)), max_size=300)


def history(*points: tuple[float, int]) -> ProgressHistory:
    """Return the history of a job that has this number of rows at each time."""
    progress_history = ProgressHistory(start=points[0][0] if points else 0.0)
    for now, rows in points:
        progress_history.add(rows, now)
    return progress_history


@pytest.mark.parametrize(
    ("rows", "total", "estimated", "percent", "eta"),
    [
        (0, None, False, None, None),
        (0, 200, False, 0, None),
        (1, 200, False, 0, "1m40s"),
        (199, 200, False, 99, "1s"),
        (200, 200, False, 100, "0s"),
        (300, 200, False, 100, "0s"),
        (0, 0, False, 100, "0s"),
        (0, 0, True, None, None),
        (199, 200, True, 99, "1s"),
        (200, 200, True, 99, None),
        (300, 200, True, 99, None),
    ],
)
def test_percentage_and_remaining_time(
    *, rows: int, total: int | None, estimated: bool, percent: int | None, eta: str | None
) -> None:
    progress = Progress.of(rows, total, estimated=estimated, rate=2.0 if rows else None)
    assert (progress.percent, progress.eta) == (percent, eta)


@given(ROWS, st.none() | ROWS, st.booleans())
def test_percentage_is_100_exactly_if_all_of_a_known_number_of_rows_are_finished(
    rows: int, total: int | None, estimated: bool
) -> None:
    progress = Progress.of(rows, total, estimated=estimated)
    complete = total is not None and rows >= total and not estimated
    assert (progress.percent == 100) == complete
    assert progress.total is None or progress.total >= rows


@pytest.mark.parametrize(
    ("progress", "rows", "speed", "line"),
    [
        (Progress.of(0), "0", "", "0 rows"),
        (Progress.of(1, rate=1234.56), "1", "1,235.0 rows/s", "1 row, 1,235.0 rows/s"),
        (Progress.of(9, 9, rate=3.0), "9 of 9 (100 %)", "3.0 rows/s", "9 rows, 100 %, 3.0 rows/s"),
        (
            Progress.of(1200, 10000, estimated=True, rate=33.25),
            "1,200 of ~10,000 (12 %)",
            "33.2 rows/s",
            "1200 rows, 12 %, 33.2 rows/s, ETA 4m25s",
        ),
        (
            Progress.of(30, 260, rate=0.0412),
            "30 of 260 (11 %)",
            "0.041 rows/s",
            "30 rows, 11 %, 0.041 rows/s, ETA 1h33m",
        ),
    ],
    ids=["nothing", "no total", "complete", "estimated", "slow"],
)
def test_texts(progress: Progress, rows: str, speed: str, line: str) -> None:
    assert (progress.rows_text, progress.speed) == (rows, speed)
    assert ", ".join([*progress.figures, *progress.pace]) == line


def test_remaining_time_of_an_extreme_speed_is_unknown() -> None:
    """The driver of a tenant writes the speed."""
    assert Progress(rows=1, total=MAX_ROWS, rowsPerSecond=5e-324).remaining_seconds is None
    assert Progress.of(10**18, 10**18).rows == MAX_ROWS


@pytest.mark.parametrize(
    ("parts", "total"),
    [
        (
            [Progress.of(10, 10, rate=1.0), Progress.of(20, 50, estimated=True, rate=3.0)],
            Progress.of(30, 60, estimated=True, rate=3.0),
        ),
        ([Progress.of(10, 10), Progress.of(20)], Progress.of(30)),
        ([Progress.of(10, 10), Progress.of(20, 20)], Progress.of(30, 30)),
        (
            [Progress.of(10, 10), Progress.of(1, 1, estimated=True)],
            Progress.of(11, 11, estimated=True),
        ),
    ],
    ids=["estimated", "unknown", "complete", "all of an estimate"],
)
def test_sum_of_parts(parts: list[Progress], total: Progress) -> None:
    assert Progress.sum(parts) == total


@pytest.mark.parametrize(
    ("points", "rate"),
    [
        ([], None),
        ([(5, 10)], None),
        ([(5, 10), (5, 20)], None),
        ([(5, 10), (7, 20)], 5),
        ([(0, 0), (90, 0), (100, 20)], 2),
        ([(0, 200), (100, 200), (110, 250)], 5),
        ([(0, 0), (10, 100), (30, 100)], 100 / 30),
        ([(0, 0), (60, 600), (90, 630), (120, 660)], 1),
        ([(0, 0), (100, 1000), (130, 1300), (160, 1360), (200, 1400)], 4),
        ([(0, 0), (60, 600), (120, 600), (180, 600)], 600 / 180),
        ([(0, 0), (60, 600), (65, 700), (70, 800), (200, 800)], 100 / 135),
        ([(0, 0), (10, 20), (4, 40), (20, 60)], 3),
        ([(0, 0), (10, 50), (20, 40)], 2),
    ],
    ids=[
        "empty",
        "one point",
        "no time",
        "two points",
        "loading does not count",
        "resumed rows do not count",
        "between commits",
        "the last minute",
        "the second half",
        "a pause of all attempts",
        "a pause after new rows",
        "the clock goes backwards",
        "the final count is lower",
    ],
)
def test_rate(points: list[tuple[float, int]], rate: float | None) -> None:
    result = history(*points).rate
    assert result == (None if rate is None else pytest.approx(rate))


@given(READINGS)
@example([(10.0, 20), (-6.0, 20)])
@example([(1.0, 1)] * 300)
def test_history_is_bounded_and_keeps_its_ends(readings: list[tuple[float, int]]) -> None:
    now, rows, progress_history = 0.0, 0, ProgressHistory(start=0.0)
    for seconds, more in [(0.0, 0), *readings]:
        now, rows = now + seconds, rows + more
        progress_history.add(rows, now)
    shown = progress_history.over_time
    assert len(shown.seconds) == len(shown.rows) <= MAX_POINTS
    assert (shown.seconds[0], shown.rows[0], shown.rows[-1]) == (0, 0, rows)
    assert shown.rows == sorted(shown.rows)
    assert shown.seconds == sorted(shown.seconds)
    assert progress_history.rate is None or progress_history.rate > 0


def test_points_of_a_long_steady_job_are_about_as_far_apart() -> None:
    result = history(*((second, 2 * second) for second in range(10_000)))
    assert result.rate == 2
    assert MAX_POINTS / 3 < len(result.points) <= MAX_POINTS
    seconds = result.over_time.seconds
    assert max(later - earlier for earlier, later in pairwise(seconds)) < 4 * 10_000 / MAX_POINTS


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.2, "1s"),
        (59, "59s"),
        (59.5, "1m00s"),
        (150, "2m30s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (11_159, "3h05m"),
        (360_000, "100h00m"),
    ],
)
def test_duration_is_formatted(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
