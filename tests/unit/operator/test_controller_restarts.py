"""The operator may be killed at any point: another goes on and comes to the same end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from batchinference.spec.report import JobState
from support.fake_cluster import FakeCluster, FakeDriver, KubeRay, MemoryGateway, operated
from support.virtual_time import run, until


class Killed(BaseException):
    """The process is gone: nothing in it gets to say another word."""


class Killer:
    """Lets so many calls pass and kills at the next, before or after the server has served it."""

    def __init__(self, calls: int, when: str) -> None:
        self.left = calls
        self.killed = False
        self.when = when
        self.calls: list[str] = []

    def before(self, call: str) -> None:
        self.calls.append(call)
        if self.left == 0 and not self.killed and self.when == "before":
            self._kill()

    def after(self, call: str) -> None:
        if self.left == 0 and not self.killed and self.when == "after":
            self._kill()
        self.left -= 1

    def _kill(self) -> None:
        self.killed = True
        raise Killed


NEVER = 10_000
LAG = {"RayJob": 1.0}
"""Late enough that the operator looks a RayJob up."""


async def life(killer: Killer, last: JobState) -> FakeCluster:
    """A job's life with an operator that is killed once and at once replaced."""
    cluster, driver = FakeCluster(), FakeDriver()
    cluster.apply()
    playing = asyncio.create_task(KubeRay(cluster, driver).run(last))
    gateway = MemoryGateway(cluster, killer.before, killer.after)
    with contextlib.suppress(BaseExceptionGroup):
        async with operated(gateway, driver, lag=LAG):
            await asyncio.sleep(300)
    async with operated(MemoryGateway(cluster), driver, lag=LAG):
        await until(playing.done)
        await asyncio.sleep(300)
    return cluster


def outcome(cluster: FakeCluster) -> dict[Any, Any]:
    """All objects as they stand, without what differs from one moment to another."""
    found = {}
    for key, body in cluster.objects.items():
        metadata = {**body["metadata"], "uid": "", "resourceVersion": ""}
        status = dict(body.get("status", {}))
        status["conditions"] = [
            {**condition, "lastTransitionTime": ""} for condition in status.get("conditions", [])
        ]
        found[key] = {**body, "metadata": metadata, "status": status}
    return found


def calls_of(last: JobState) -> list[str]:
    killer = Killer(NEVER, "before")
    run(life(killer, last))
    return killer.calls


CALLS = calls_of(JobState.SUCCEEDED)


@pytest.fixture(scope="module")
def undisturbed() -> dict[JobState, dict[Any, Any]]:
    """What comes of a job whose operator lives."""
    ends = (JobState.SUCCEEDED, JobState.FAILED)
    return {last: outcome(run(life(Killer(NEVER, "before"), last))) for last in ends}


def test_the_life_of_a_job_takes_calls_of_every_kind() -> None:
    made = {"create ConfigMap", "create Secret", "create RayJob"}
    assert set(CALLS) == made | {"patch status", "get RayJob", "release"}


@pytest.mark.parametrize("last", [JobState.SUCCEEDED, JobState.FAILED])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("calls", range(len(CALLS)), ids=lambda n: f"{n}-{CALLS[n]}")
def test_an_operator_that_is_killed_at_any_call_is_replaced_without_a_trace(
    undisturbed: dict[JobState, dict[Any, Any]], calls: int, when: str, last: JobState
) -> None:
    killer = Killer(calls, when)
    cluster = run(life(killer, last))
    assert killer.killed
    assert outcome(cluster) == undisturbed[last]
    phases = [status["phase"] for status in cluster.history]
    order = ["Pending", "Starting", "Running", "Finalizing", phases[-1]]
    assert phases == sorted(phases, key=order.index)
