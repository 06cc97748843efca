"""Progress from counts: it never decreases, and unknown values are omitted."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchinference.pipeline.input import RowCount
from batchinference.pipeline.job import JobRun
from batchinference.pipeline.report.builder import ReportBuilder
from batchinference.spec.progress import Counts, Progress
from batchinference.spec.report import JobState
from support.outputs.builders import layout_of

COUNTS = st.builds(Counts, **dict.fromkeys(("read", "written", "failed"), st.integers(0, 500)))
TOTALS = st.none() | st.builds(RowCount, st.integers(0, 2000), st.booleans())


def begun(directory: Path, total: RowCount | None, before: int = 0) -> ReportBuilder:
    reports = ReportBuilder("job", layout_of(directory))
    reports.begin_rows(total, Counts(read=before, written=before))
    return reports


def progress_of(reports: ReportBuilder) -> Progress:
    found = reports.build().progress
    assert found is not None
    return found


@given(TOTALS, st.lists(COUNTS, max_size=20), COUNTS)
def test_progress_never_goes_back_and_ends_with_the_final_count(
    total: RowCount | None, readings: list[Counts], last: Counts
) -> None:
    reports = begun(Path("out"), total)
    shown = [progress_of(reports)]
    for counts in readings:
        reports.read(counts)
        shown.append(progress_of(reports))
    for before, after in pairwise(shown):
        assert before.rows <= after.rows
        assert (before.total or 0) <= (after.total or 0)
    reports.enter(JobState.FINALIZING)
    reports.finish(last)
    assert progress_of(reports).at_rate(None) == Progress.of(last.read, last.read)
    assert reports.build().counts == last


def test_speed_of_a_finished_job_is_averaged_over_its_running_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The summary shows the speed next to the running time."""
    clock = iter((0.0, 0.0, 0.0, 5.0, 5.0, 25.0, 25.0, 25.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    reports = begun(tmp_path, RowCount(400, estimated=False), before=100)
    reports.read(Counts(read=399))
    reports.enter(JobState.FINALIZING)
    reports.finish(Counts(read=400))
    assert progress_of(reports).rows_per_second == 300 / reports.build().seconds["running"]


def test_rows_of_earlier_attempts_do_not_count_for_the_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    reports, shown = begun(tmp_path, RowCount(300, estimated=False), before=200), []
    for now, rows in ((100.0, 200), (110.0, 250), (120.0, 240)):
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        reports.read(Counts(read=rows, written=rows))
        shown.append(progress_of(reports))
    assert [each.rows for each in shown] == [200, 250, 250]
    assert [each.rows_per_second for each in shown] == [None, 5.0, 2.5]
    assert [each.eta for each in shown] == [None, "10s", "20s"]


def test_report_has_the_notes_of_all_attempts(tmp_path: Path) -> None:
    run = JobRun(Mock(), Mock(), Mock(), Mock())
    run._reports = ReportBuilder("job", layout_of(tmp_path))
    for note in ({"retries": 3, "task": 1}, {"peak_bytes": 1}):
        run._add_notes([("write", json.dumps(note))])
    found = run._reports.build()
    assert found.memory is not None
    assert (found.retries, found.memory.peak_worker_bytes) == (3, 1)


def test_each_output_has_its_own_rows_over_time(tmp_path: Path) -> None:
    layout = layout_of(tmp_path)
    reports = ReportBuilder("two", layout)
    for rows in (400, 10):
        reports.begin_output(layout)
        reports.begin_rows(None, Counts())
        reports.read(Counts(read=rows))
    history = reports.build().rows_over_time
    assert history is not None
    assert history.rows == [0, 10]
