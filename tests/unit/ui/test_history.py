"""The progress that the page remembers."""

from __future__ import annotations

import pytest

from batchinference.ui.history import MAX_POINTS, History


def history(*points: tuple[float, int]) -> History:
    found = History()
    for now, rows in points:
        found.add(now, rows)
    return found


@pytest.mark.parametrize(
    ("points", "rate"),
    [
        ([], None),
        ([(5, 10)], None),
        ([(5, 10), (5, 20)], None),
        ([(5, 10), (7, 20)], 5),
        ([(0, 0), (100, 0), (116, 32), (118, 36)], 2),
    ],
    ids=["empty", "one point", "no time", "two points", "only the last seconds"],
)
def test_rate_is_measured_over_the_last_seconds(
    points: list[tuple[float, int]], rate: float | None
) -> None:
    assert history(*points).rate == rate


def test_fewer_rows_than_before_begin_a_new_history() -> None:
    found = history((0, 50), (1, 60), (2, 5), (4, 15))
    assert (found.rate, found.over_time.rows) == (5, [5, 15])


def test_long_history_is_thinned_out_and_keeps_its_ends() -> None:
    found = history(*((second, 2 * second) for second in range(1000)))
    seconds, rows = found.over_time.seconds, found.over_time.rows
    assert len(seconds) <= MAX_POINTS
    assert (seconds[0], rows[0], seconds[-1], rows[-1]) == (0, 0, 999, 1998)
    assert rows == sorted(rows)
    assert found.rate == 2
