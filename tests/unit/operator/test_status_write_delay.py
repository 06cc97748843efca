"""The rate of status patches: state changes are written immediately, progress with pauses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.observed_and_actions import DriverAnswer
from batchinference_operator.reconcile.status_write_delay import (
    USAGE_SECONDS,
    WRITE_SECONDS,
    write_delay,
)
from support.operator.harness import Harness
from support.operator.objects import placed, pod_body, report
from support.operator.virtual_time import in_virtual_time
from support.tiers import examples

CONDITION = {"type": "Ready", "status": "False", "reason": "Running", "message": "going on"}
ATTEMPT = {"number": 1, "rayJobName": "job-1", "startTime": "2026-03-01T12:00:00Z", "rows": 5}
STATUS: dict[str, Any] = {
    "phase": "Running",
    "observedGeneration": 1,
    "conditions": [CONDITION],
    "attempts": [ATTEMPT],
    "progress": {"rows": 5, "total": 10},
    "counts": {"read": 5},
    "deviceSeconds": 7,
    "operator": {"usageTime": "2026-03-01T12:01:00Z"},
}


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": "Finalizing"},
        {"observedGeneration": 2},
        {"conditions": [{**CONDITION, "status": "True"}]},
        {"conditions": [CONDITION, {**CONDITION, "type": "Stalled"}]},
        {"attempts": [{**ATTEMPT, "outcome": "Failed"}]},
        {"attempts": [ATTEMPT, {"number": 2, "rayJobName": "job-2"}]},
        {"nextAttemptTime": "2026-03-01T12:02:00Z"},
        {"rayClusterName": "job-1-abcde"},
        {"operator": {**STATUS["operator"], "driverHead": {"pod": "a", "lost": 1, "rows": 5}}},
        {"anything": "new"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_changes_of_state_are_written_at_once(changes: dict[str, Any]) -> None:
    assert write_delay(STATUS, {**STATUS, **changes}, since=0) == 0


FIGURES = [
    {"progress": {"rows": 6, "total": 10}},
    {"counts": {"read": 6}},
    {"deviceSeconds": 9, "cpuSeconds": 1, "operator": {"usageTime": "2026-03-01T12:01:02Z"}},
    {"operator": {"progressTime": "2026-03-01T12:01:02Z"}, "attempts": [{**ATTEMPT, "rows": 6}]},
    {"conditions": [{**CONDITION, "message": "going on well"}]},
    {"conditions": [{**CONDITION, "reason": "Unschedulable"}]},
]


@pytest.mark.parametrize("changes", FIGURES, ids=lambda changes: next(iter(changes)))
@given(since=st.floats(-1e6, 1e6))
@settings(max_examples=examples(30), deadline=None)
def test_progress_figures_are_written_with_a_pause(changes: dict[str, Any], since: float) -> None:
    """The wait never exceeds WRITE_SECONDS, even if the clock was set back."""
    wait = write_delay(STATUS, {**STATUS, **changes}, since)
    assert 0 <= wait <= WRITE_SECONDS
    assert (wait == 0) == (since >= WRITE_SECONDS)


def test_problem_before_the_first_row_is_written_at_once() -> None:
    before = {**STATUS, "phase": "Pending"}
    after = {**before, "conditions": [{**CONDITION, "reason": "Unschedulable"}]}
    assert write_delay(before, after, since=0) == 0


def test_usage_of_starting_pods_is_written_rarely() -> None:
    before = {**STATUS, "phase": "Starting"}
    used = {**before, "cpuSeconds": 9, "operator": {"usageTime": "2026-03-01T12:01:09Z"}}
    assert write_delay(before, used, since=WRITE_SECONDS) == USAGE_SECONDS - WRITE_SECONDS
    assert write_delay(before, used, since=USAGE_SECONDS) == 0
    explained = {**used, "conditions": [{**CONDITION, "message": "another"}]}
    assert write_delay(before, explained, since=WRITE_SECONDS) == 0


@in_virtual_time
async def test_workers_starting_one_by_one_cause_few_writes(harness: Harness) -> None:
    unplaced = [{"type": "PodScheduled", "status": "False", "message": "0/5 nodes"}]
    async with harness.operator():
        ray_job = await harness.run_job()
        await ray_job.answer(DriverAnswer(reached=True, report=report(JobState.RUNNING, rows=5)))
        before = harness.count("patch status")
        for number in range(60):
            name = f"job-1-worker-{number}"
            harness.cluster.put(pod_body(name, conditions=unplaced))
            await asyncio.sleep(0.5)
            harness.cluster.put(pod_body(name, **placed()))
            await asyncio.sleep(0.5)
        assert harness.count("patch status") - before <= 60 / WRITE_SECONDS + 1


@in_virtual_time
async def test_running_job_is_written_every_five_seconds_its_end_at_once(harness: Harness) -> None:
    async with harness.operator():
        await harness.run_job()
        before = harness.count("patch status")
        for rows in range(60):
            running = report(JobState.RUNNING, rows=rows, total=100)
            harness.driver.answers["job-1"] = DriverAnswer(reached=True, report=running)
            await asyncio.sleep(1)
        assert 9 <= harness.count("patch status") - before <= 13
        assert harness.cluster.status()["progress"]["rows"] >= 52


@in_virtual_time
async def test_unchanged_job_is_not_written(harness: Harness) -> None:
    async with harness.operator():
        await harness.run_job()
        await asyncio.sleep(20)
        before = harness.count("patch status")
        await asyncio.sleep(600)
        assert harness.count("patch status") == before
