"""The whole status: the source of each field, the fields that are kept, and progress that never
decreases."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.spec.progress import Counts, Progress, ReplacedFiles
from batchinference.spec.report import JobState, Report
from batchinference.spec.status import PROCESSING_PHASES, BatchInferenceStatus, Phase
from batchinference_operator.status.conditions import Summary
from batchinference_operator.status.job_status import Status, StatusUpdate, build_status
from batchinference_operator.status.ray_job_view import RayJobView
from batchinference_operator.status.row_counts import without_decrease
from support.operator.objects import RUNNING, SUCCEEDED, ray_job_body, report
from support.tiers import examples

NOW, LATER = "2026-03-01T12:30:00Z", "2026-03-01T12:31:00Z"
ACTIVE = Summary("Running", "rows are being processed")
DONE = Summary("Succeeded", "9 rows written", complete=True)
COUNTS = Counts(read=10, written=9, failed=1, filtered=0)


def built(
    update: StatusUpdate, previous: Status | None = None, generation: int = 1, now: str = NOW
) -> Status:
    return build_status(previous or {}, generation, update, now)


def running(last_report: Report | None) -> StatusUpdate:
    ray_job = RayJobView.of(ray_job_body(**RUNNING, rayClusterName="job-1-raycluster-x"))
    return StatusUpdate(Phase.RUNNING, ACTIVE, ray_job, last_report)


def test_status_is_valid_by_the_specification() -> None:
    last_report = report(JobState.SUCCEEDED, rows=10, total=20, counts=COUNTS)
    status = built(StatusUpdate(Phase.SUCCEEDED, DONE, running(last_report).ray_job, last_report))
    known = BatchInferenceStatus.model_validate(
        {**status, "phase": Phase(status["phase"])}, strict=True
    )
    assert known.progress == last_report.progress
    assert known.counts == COUNTS


def test_running_status_has_the_fields_of_ray_job_and_report() -> None:
    status = built(running(report(rows=10, total=20, counts=COUNTS)))
    assert status["rayClusterName"] == "job-1-raycluster-x"
    assert status["startTime"] == "2026-03-01T12:00:00Z"
    assert status["progress"] == {"rows": 10, "total": 20}
    assert status["counts"] == {"read": 10, "written": 9, "failed": 1, "filtered": 0, "warned": 0}
    assert status["output"] == "s3://out/result/"
    assert "completionTime" not in status


WARNING = {"name": "TextCut", "step": "embed", "count": 3, "amount": 40, "message": "texts"}


def test_status_has_the_warnings_of_the_last_report_with_counts() -> None:
    warned = built(running(report(rows=10, counts=COUNTS, warnings=[WARNING])))
    assert warned["warnings"] == [WARNING]
    assert built(running(report(rows=10)), warned)["warnings"] == [WARNING]
    assert "warnings" not in built(running(report(rows=2, counts=COUNTS)), warned)


def test_stage_is_named_while_the_job_runs() -> None:
    first = built(running(report(rows=10, stage="embed")))
    assert first["stage"] == "embed"
    assert built(running(None), first)["stage"] == "embed"
    assert "stage" not in built(running(report(JobState.FINALIZING, rows=10)), first)
    ended = StatusUpdate(Phase.SUCCEEDED, DONE, None, report(JobState.SUCCEEDED, stage="write"))
    assert "stage" not in built(ended, first)


def test_fields_of_a_deleted_ray_job_are_kept() -> None:
    before = built(running(report(rows=10, counts=COUNTS)))
    after = built(StatusUpdate(Phase.FAILED, Summary("RayJobDeleted", "gone", failed=True)), before)
    fields = ("rayClusterName", "startTime", "progress", "counts", "output")
    assert {field: after[field] for field in fields} == {field: before[field] for field in fields}


@pytest.mark.parametrize("last", [None, report(rows=10, counts=COUNTS)], ids=["none", "running"])
def test_success_without_a_final_report_has_no_counts(last: Report | None) -> None:
    before = built(running(report(rows=10, counts=COUNTS)))
    after = built(
        StatusUpdate(Phase.SUCCEEDED, DONE, RayJobView.of(ray_job_body(**SUCCEEDED)), last), before
    )
    assert "counts" not in after
    assert after["progress"]["rows"] == 10


def test_new_report_replaces_progress() -> None:
    before = built(running(report(rows=10, total=100)))
    assert built(running(report(rows=11)), before)["progress"] == {"rows": 11}


@pytest.mark.parametrize(
    ("ray_job", "last_report", "expected"),
    [
        (SUCCEEDED, report(JobState.SUCCEEDED), "2026-03-01T12:09:00Z"),
        (None, report(JobState.FAILED), "2026-03-01T12:09:00Z"),
        (SUCCEEDED, report(JobState.FINALIZING), "2026-03-01T12:10:00Z"),
        (SUCCEEDED, None, "2026-03-01T12:10:00Z"),
        (RUNNING, None, NOW),
        (None, None, NOW),
    ],
    ids=["report", "report-only", "kuberay-over-old-report", "kuberay", "now", "now-only"],
)
def test_completion_time_comes_from_report_ray_job_or_clock(
    ray_job: dict[str, Any] | None, last_report: Report | None, expected: str
) -> None:
    view = RayJobView.of(ray_job_body(**ray_job)) if ray_job else None
    for summary in (DONE, Summary("X", "x", failed=True)):
        assert (
            built(StatusUpdate(Phase.FAILED, summary, view, last_report))["completionTime"]
            == expected
        )


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in PROCESSING_PHASES])
def test_eta_is_dropped_while_no_row_is_processed(phase: Phase) -> None:
    last = report().model_copy(update={"progress": Progress(rows=1, total=9, eta="20s")})
    before = built(running(last))
    assert before["progress"]["eta"] == "20s"
    after = built(StatusUpdate(phase, Summary("Some", "message")), before)
    assert after["progress"] == {k: v for k, v in before["progress"].items() if k != "eta"}


def test_completion_time_is_set_once() -> None:
    first = built(StatusUpdate(Phase.SUCCEEDED, DONE))
    second = built(StatusUpdate(Phase.SUCCEEDED, DONE), first, now=LATER)
    assert second["completionTime"] == NOW


def test_same_observation_leaves_the_status_unchanged() -> None:
    before = built(running(report(rows=10, counts=COUNTS)))
    copy = {**before}
    assert built(running(report(rows=10, counts=COUNTS)), before, now=LATER) == before
    built(running(report(rows=20)), before, now=LATER)
    assert before == copy


def status_after(last_report: Report | None, before: Status | None = None) -> Status:
    """Return the status after a report of the driver."""
    shown = without_decrease(before or {}, last_report)
    return built(StatusUpdate(Phase.RUNNING, ACTIVE, None, shown), before)


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


@given(reports=st.lists(st.none() | REPORTS, max_size=12))
@settings(max_examples=examples(200), deadline=None)
def test_progress_never_decreases(reports: list[Report | None]) -> None:
    status: dict[str, Any] = {}
    rows = 0
    for each in reports:
        status = status_after(each, status)
        now = status.get("progress", {}).get("rows", 0)
        assert now >= rows
        rows = now


def test_replaced_files_are_kept_when_a_driver_restarts() -> None:
    files = {"recomputed": 2, "removed": 1}
    before = status_after(report(rows=10, replacedFiles=ReplacedFiles(**files)))
    assert before["replacedFiles"] == files
    assert status_after(report(JobState.PREPARING), before)["replacedFiles"] == files
