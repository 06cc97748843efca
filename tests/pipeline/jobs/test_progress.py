"""Progress from counts: it never decreases, and unknown values are omitted."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchinference.pipeline.commit.manifest import RowCounts
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.job import JobRun
from batchinference.pipeline.report import ProgressTracker, ReportBuilder, duration
from batchinference.spec.status import Progress
from support.outputs.builders import layout_of

COUNTS = st.builds(RowCounts, *[st.integers(0, 500)] * 3)
READINGS = st.lists(st.tuples(COUNTS, st.floats(0, 100)), min_size=1, max_size=20)
TOTALS = st.none() | st.builds(RowCount, st.integers(0, 2000), st.booleans())


def readings(tracker: ProgressTracker, given_: list[tuple[RowCounts, float]]) -> list[Progress]:
    """Return what the tracker shows after each update. Times are seconds between updates."""
    now, shown = 1000.0, []
    for counts, seconds in given_:
        now += seconds
        tracker.update(counts, now)
        assert tracker.progress is not None
        shown.append(tracker.progress)
    return shown


def shown_at(total: RowCount | None, *given_: tuple[int, float]) -> Progress:
    return readings(
        ProgressTracker(total), [(RowCounts(rows, rows), seconds) for rows, seconds in given_]
    )[-1]


@given(TOTALS, READINGS)
def test_progress_never_goes_back(
    total: RowCount | None, given_: list[tuple[RowCounts, float]]
) -> None:
    for before, after in pairwise(readings(ProgressTracker(total), given_)):
        assert before.rows <= after.rows
        assert (before.total or 0) <= (after.total or 0)


@given(st.integers(1, 2000), READINGS)
def test_percent_of_a_known_total_reaches_100_only_at_the_end(
    rows: int, given_: list[tuple[RowCounts, float]]
) -> None:
    shown = readings(ProgressTracker(RowCount(rows, estimated=False)), given_)
    percents = [progress.percent for progress in shown]
    assert all(percent is not None for percent in percents)
    assert percents == sorted(percents, key=lambda percent: percent or 0)
    assert all((p.percent == 100) == (p.rows == p.total) for p in shown)


@given(st.integers(0, 2000), READINGS)
def test_estimated_total_never_reaches_100_percent(
    rows: int, given_: list[tuple[RowCounts, float]]
) -> None:
    for progress in readings(ProgressTracker(RowCount(rows, estimated=True)), given_):
        assert progress.estimated
        assert progress.percent is None or progress.percent <= 99


@given(TOTALS, READINGS, COUNTS)
def test_finished_job_is_at_100_percent_of_its_rows(
    total: RowCount | None, given_: list[tuple[RowCounts, float]], last: RowCounts
) -> None:
    tracker = ProgressTracker(total)
    readings(tracker, given_)
    tracker.finish(last, 10_000.0)
    progress = tracker.progress
    assert progress is not None
    assert (progress.rows, progress.total, progress.percent) == (last.read, last.read, 100)
    assert (progress.estimated, progress.eta, tracker.counts) == (None, "0s", last)


def test_speed_of_a_finished_job_is_averaged_over_its_running_time() -> None:
    """The summary shows the speed next to the running time."""
    tracker = ProgressTracker(RowCount(400, estimated=False), before=100)
    tracker.update(RowCounts(read=399), 1.0)
    tracker.finish(RowCounts(read=400), seconds=20.0)
    assert tracker.progress is not None
    assert tracker.progress.rows_per_second == 15.0


def test_report_has_the_notes_of_all_attempts(tmp_path: Path) -> None:
    run = JobRun(Mock(), Mock(), Mock(), Mock())
    run._reports = ReportBuilder("job", layout_of(tmp_path))
    for note in ({"retries": 3, "task": 1}, {"peak_bytes": 1}):
        run._add_notes([("write", json.dumps(note))])
    notes = run._reports.notes
    assert notes is not None
    assert (notes.retries, notes.peak_bytes) == (3, 1)


def test_each_output_has_its_own_rows_over_time(tmp_path: Path) -> None:
    layout = layout_of(tmp_path)
    reports = ReportBuilder("two", layout)
    for rows in (400, 10):
        reports.begin_output(layout)
        reports.begin_rows(ProgressTracker(None))
        reports.read(RowCounts(read=rows))
    history = reports.build().rows_over_time
    assert history is not None
    assert history.rows == [10]


def test_unknown_total_has_no_percent_and_eta() -> None:
    progress = shown_at(None, (0, 0), (100, 10))
    assert progress == Progress(rows=100, rowsPerSecond=10.0)


def test_speed_is_measured_from_the_first_rows() -> None:
    progress = shown_at(RowCount(300, estimated=False), (0, 0), (0, 100), (100, 10))
    assert progress.rows_per_second == 10.0
    assert progress.eta == "20s"


def test_rows_of_earlier_attempts_do_not_count_for_speed() -> None:
    tracker = ProgressTracker(RowCount(300, estimated=False), before=200)
    shown = readings(
        tracker, [(RowCounts(200, 200), 0), (RowCounts(200, 200), 100), (RowCounts(250, 250), 10)]
    )
    assert [progress.percent for progress in shown] == [66, 66, 83]
    assert [progress.rows_per_second for progress in shown] == [None, None, 5.0]
    assert shown[-1].eta == "10s"


def test_no_speed_and_eta_before_the_first_rows() -> None:
    progress = shown_at(RowCount(300, estimated=False), (0, 0), (0, 60))
    assert (progress.percent, progress.rows_per_second, progress.eta) == (0, None, None)


def test_lower_count_changes_only_the_speed() -> None:
    progress = shown_at(RowCount(100, estimated=False), (0, 0), (50, 5), (40, 5))
    assert (progress.rows, progress.percent, progress.rows_per_second) == (50, 50, 5.0)


def test_rows_above_the_estimate_raise_the_total() -> None:
    progress = shown_at(RowCount(100, estimated=True), (0, 0), (150, 5))
    assert (progress.rows, progress.total, progress.percent) == (150, 150, 99)


@pytest.mark.parametrize(("rows", "percent"), [(0, 0), (1, 0), (199, 99), (200, 100)], ids=str)
def test_percent_is_rounded_down(rows: int, percent: int) -> None:
    assert shown_at(RowCount(200, estimated=False), (0, 0), (rows, 1)).percent == percent


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
    assert duration(seconds) == text
