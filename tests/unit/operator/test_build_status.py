"""The whole status: what is taken from where, and what stays."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.spec.phases import AT_WORK, Phase
from batchinference.spec.report import JobState, Report
from batchinference.spec.status import BatchInferenceStatus, Counts, Progress
from batchinference_operator.status.conditions import Verdict
from batchinference_operator.status.observations import RayJobView
from batchinference_operator.status.status import Finding, Status, build_status
from support.operator.objects import RUNNING, SUCCEEDED, ray_job_body, report
from support.tiers import examples

NOW, LATER = "2026-03-01T12:30:00Z", "2026-03-01T12:31:00Z"
ACTIVE = Verdict("Running", "rows are being processed")
DONE = Verdict("Succeeded", "9 rows written", complete=True)
COUNTS = Counts(read=10, written=9, failed=1, skipped=0)


def built(
    finding: Finding, previous: Status | None = None, generation: int = 1, now: str = NOW
) -> Status:
    return build_status(previous or {}, generation, finding, now)


def running(told: Report | None) -> Finding:
    ray_job = RayJobView.of(ray_job_body(**RUNNING, rayClusterName="job-1-raycluster-x"))
    return Finding(Phase.RUNNING, ACTIVE, ray_job, told)


def test_first_status_has_only_phase_generation_and_conditions() -> None:
    status = built(Finding(Phase.PENDING, ACTIVE), generation=3)
    assert set(status) == {"phase", "observedGeneration", "conditions"}
    assert (status["phase"], status["observedGeneration"]) == ("Pending", 3)


def test_a_status_is_one_that_the_specification_knows() -> None:
    told = report(rows=10, total=20, counts=COUNTS)
    status = built(Finding(Phase.SUCCEEDED, DONE, running(told).ray_job, told))
    known = BatchInferenceStatus.model_validate(
        {**status, "phase": Phase(status["phase"])}, strict=True
    )
    assert known.progress == told.progress
    assert known.counts == COUNTS


def test_the_ray_job_gives_the_clusters_name_and_the_start() -> None:
    status = built(running(None))
    assert status["rayClusterName"] == "job-1-raycluster-x"
    assert status["startTime"] == "2026-03-01T12:00:00Z"


def test_a_ray_job_without_a_cluster_yet_names_none() -> None:
    finding = Finding(Phase.STARTING, ACTIVE, RayJobView.of(ray_job_body(rayClusterName=None)))
    assert "rayClusterName" not in built(finding)


def test_the_report_gives_progress_counts_and_output() -> None:
    status = built(running(report(rows=10, total=20, counts=COUNTS)))
    assert status["progress"] == {"rows": 10, "total": 20}
    assert status["counts"] == {"read": 10, "written": 9, "failed": 1, "skipped": 0}
    assert status["output"] == "s3://out/result/"


def test_what_cannot_be_seen_any_more_stays() -> None:
    before = built(running(report(rows=10, counts=COUNTS)))
    after = built(Finding(Phase.FAILED, Verdict("RayJobDeleted", "gone", failed=True)), before)
    for field in ("rayClusterName", "startTime", "progress", "counts", "output"):
        assert after[field] == before[field]


def test_progress_goes_on() -> None:
    before = built(running(report(rows=10, total=100)))
    assert built(running(report(rows=11)), before)["progress"] == {"rows": 11}


@pytest.mark.parametrize(
    "anew",
    [
        report(JobState.PREPARING),
        report(JobState.PREPARING, rows=0),
        report(JobState.RUNNING),
        report(JobState.RUNNING, rows=9, counts=Counts(read=9, written=9, failed=0, skipped=0)),
    ],
    ids=["no-progress", "from-nothing", "running-without-progress", "fewer-rows"],
)
def test_progress_and_counts_stay_when_a_driver_begins_anew(anew: Report) -> None:
    before = built(running(report(rows=10, counts=COUNTS)))
    after = built(running(anew), before)
    assert after["progress"] == {"rows": 10}
    assert after["counts"] == COUNTS.model_dump(by_alias=True)


def test_the_last_report_counts_even_when_it_counts_less() -> None:
    before = built(running(report(rows=10, counts=COUNTS)))
    last = report(JobState.FAILED, rows=4)
    finding = Finding(Phase.FAILED, Verdict("X", "x", failed=True), None, last)
    assert built(finding, before)["progress"] == {"rows": 4}


REPORTS = st.builds(
    lambda state, rows: report(state, rows=rows),
    st.sampled_from([JobState.PREPARING, JobState.RUNNING, JobState.FINALIZING]),
    st.none() | st.integers(0, 50),
)


@given(told=st.lists(st.none() | REPORTS, max_size=12))
@settings(max_examples=examples(200), deadline=None)
def test_progress_never_decreases(told: list[Report | None]) -> None:
    status: dict[str, Any] = {}
    rows = 0
    for each in told:
        status = built(running(each), status)
        now = status.get("progress", {}).get("rows", 0)
        assert now >= rows
        rows = now


# --- the end ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ray_job", "told", "expected"),
    [
        (SUCCEEDED, report(JobState.SUCCEEDED), "2026-03-01T12:09:00Z"),
        (None, report(JobState.FAILED), "2026-03-01T12:09:00Z"),
        (SUCCEEDED, report(JobState.FINALIZING), "2026-03-01T12:10:00Z"),
        (SUCCEEDED, None, "2026-03-01T12:10:00Z"),
        (RUNNING, None, NOW),
        (None, None, NOW),
    ],
    ids=[
        "the-drivers",
        "the-drivers-alone",
        "kuberays-over-an-old-report",
        "kuberays",
        "now",
        "now-alone",
    ],
)
def test_a_job_ended_when_its_driver_or_kuberay_or_nobody_says_so(
    ray_job: dict[str, Any] | None, told: Report | None, expected: str
) -> None:
    view = RayJobView.of(ray_job_body(**ray_job)) if ray_job else None
    for verdict in (DONE, Verdict("X", "x", failed=True)):
        assert built(Finding(Phase.FAILED, verdict, view, told))["completionTime"] == expected


def test_no_job_ended_later_than_now_by_whatever_clock() -> None:
    told = report(JobState.SUCCEEDED, updatedAt="2026-03-01T18:00:00+01:00")
    assert built(Finding(Phase.SUCCEEDED, DONE, None, told))["completionTime"] == NOW


def test_a_job_under_way_has_no_completion_time() -> None:
    assert "completionTime" not in built(running(report(rows=1)))


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in AT_WORK])
def test_a_job_of_which_no_row_is_under_way_has_no_time_that_is_left(phase: Phase) -> None:
    told = report().model_copy(update={"progress": Progress(rows=1, total=9, eta="20s")})
    before = built(running(told))
    assert before["progress"]["eta"] == "20s"
    after = built(Finding(phase, Verdict("Some", "words")), before)
    assert after["progress"] == {k: v for k, v in before["progress"].items() if k != "eta"}


def test_the_completion_time_is_set_once() -> None:
    first = built(Finding(Phase.SUCCEEDED, DONE))
    second = built(Finding(Phase.SUCCEEDED, DONE), first, now=LATER)
    assert second["completionTime"] == NOW


def test_the_previous_status_is_not_changed() -> None:
    before = built(running(report(rows=10)))
    copy = {**before}
    built(running(report(rows=20)), before, now=LATER)
    assert before == copy


def test_saying_it_again_later_changes_nothing() -> None:
    before = built(running(report(rows=10, counts=COUNTS)))
    assert built(running(report(rows=10, counts=COUNTS)), before, now=LATER) == before
