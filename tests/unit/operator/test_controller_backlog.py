"""With thousands of waiting jobs, the operator defers work that changes nothing."""

from __future__ import annotations

from collections import Counter

from batchinference_operator.controller.controller import BACKLOG, BACKLOG_SECONDS
from support.operator.harness import Harness
from support.operator.virtual_time import clock, in_virtual_time, until

MORE = 20
NAMES = [f"job-{number:03d}" for number in range(BACKLOG + MORE)]


def applied() -> Harness:
    harness = Harness()
    for name in NAMES:
        harness.cluster.apply(name)
    return harness


CREATED = ("ConfigMap", "RayJob", "Secret", "PodDisruptionBudget")


@in_virtual_time
async def test_objects_are_created_before_status_in_a_backlog() -> None:
    harness = applied()
    async with harness.operator(workers=1):
        await until(lambda: all(harness.phase(name) == "Starting" for name in NAMES))
        calls = [call for _, call in harness.calls]
        before = calls[: calls.index("patch status")]
        assert Counter(before) == {f"create {kind}": MORE + 1 for kind in CREATED}
        assert clock() < 2 * BACKLOG_SECONDS
    assert harness.count("create RayJob") == len(NAMES)


@in_virtual_time
async def test_resumed_jobs_are_updated_at_once_despite_backlog(harness: Harness) -> None:
    for name in NAMES:
        harness.cluster.apply(name, suspend=True)
    async with harness.operator(workers=1):
        await until(lambda: all(harness.phase(name) == "Suspended" for name in NAMES))
        for name in NAMES:
            harness.cluster.patch("BatchInference", name, {"spec": {"suspend": False}})
        await until(lambda: all(harness.phase(name) == "Starting" for name in NAMES), 1)


@in_virtual_time
async def test_job_start_takes_five_calls(harness: Harness) -> None:
    harness.cluster.apply()
    async with harness.operator():
        await until(lambda: harness.phase() == "Starting")
        await until(lambda: clock() > 1)
    made = [f"create {kind}" for kind in CREATED] + ["patch status"]
    assert [call for _, call in harness.calls] == made


@in_virtual_time
async def test_deleted_job_is_observed_in_a_backlog() -> None:
    harness = applied()
    async with harness.operator(workers=1):
        gone = NAMES[0]
        await until(lambda: harness.cluster.get("RayJob", f"{gone}-1"))
        harness.cluster.delete("BatchInference", gone, unseen=True)
        harness.cluster.delete("RayJob", f"{gone}-1")
        await until(lambda: clock() > 3 * BACKLOG_SECONDS)
    made = [call for at, call in harness.calls if at > 2 * BACKLOG_SECONDS and "create" in call]
    assert made == []
