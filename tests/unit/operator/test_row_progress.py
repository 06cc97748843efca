"""The rule that the progress of a job never decreases."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.spec.progress import Counts, ReplacedFiles
from batchinference.spec.report import JobState, Report
from batchinference.spec.status import Phase
from batchinference_operator.status.attempts import without_decrease
from batchinference_operator.status.conditions import Summary
from batchinference_operator.status.job_status import Status, StatusUpdate, build_status
from support.operator.objects import report
from support.tiers import examples

COUNTS = Counts(read=10, written=9, failed=1, filtered=0)


def status_after(found_report: Report | None, before: Status | None = None) -> Status:
    """Return the status after a report of the driver."""
    shown = without_decrease(before or {}, found_report)
    update = StatusUpdate(Phase.RUNNING, Summary("Running", "rows are processed"), None, shown)
    return build_status(before or {}, 1, update, "2026-03-01T12:30:00Z")


@pytest.mark.parametrize(
    "restarted",
    [
        report(JobState.PREPARING),
        report(JobState.PREPARING, rows=0),
        report(JobState.RUNNING),
        report(JobState.RUNNING, rows=9, counts=Counts(read=9, written=9, failed=0, filtered=0)),
    ],
    ids=["no-progress", "zero-rows", "running-without-progress", "fewer-rows"],
)
def test_progress_and_counts_are_kept_when_a_driver_restarts(restarted: Report) -> None:
    before = status_after(report(rows=10, counts=COUNTS))
    after = status_after(restarted, before)
    assert after["progress"] == {"rows": 10}
    assert after["counts"] == COUNTS.model_dump(exclude_none=True)


def test_final_report_may_decrease_progress() -> None:
    before = status_after(report(rows=10, counts=COUNTS))
    last = report(JobState.FAILED, rows=4)
    assert status_after(last, before)["progress"] == {"rows": 4}


REPORTS = st.builds(
    lambda state, rows: report(state, rows=rows),
    st.sampled_from([JobState.PREPARING, JobState.RUNNING, JobState.FINALIZING]),
    st.none() | st.integers(0, 50),
)


@given(found_report=st.lists(st.none() | REPORTS, max_size=12))
@settings(max_examples=examples(200), deadline=None)
def test_progress_never_decreases(found_report: list[Report | None]) -> None:
    status: dict[str, Any] = {}
    rows = 0
    for each in found_report:
        status = status_after(each, status)
        now = status.get("progress", {}).get("rows", 0)
        assert now >= rows
        rows = now


def test_replaced_files_are_kept_when_a_driver_restarts() -> None:
    files = {"recomputed": 2, "removed": 1}
    before = status_after(report(rows=10, replacedFiles=ReplacedFiles(**files)))
    assert before["replacedFiles"] == files
    assert status_after(report(JobState.PREPARING), before)["replacedFiles"] == files
