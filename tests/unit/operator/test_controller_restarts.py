"""The operator may be killed at any point: another goes on and comes to the same end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine
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
TIMES = {"lastTransitionTime", "creationTimestamp", "startTime", "completionTime", "progressTime",
         "usageTime", "endTime", "uid", "resourceVersion"}  # fmt: skip
"""What differs from one moment to another."""

Play = Callable[[FakeCluster, FakeDriver], Coroutine[Any, Any, None]]


async def succeeds(cluster: FakeCluster, driver: FakeDriver) -> None:
    await KubeRay(cluster, driver).run()


async def fails(cluster: FakeCluster, driver: FakeDriver) -> None:
    await KubeRay(cluster, driver).run(JobState.FAILED)


async def fails_once(cluster: FakeCluster, driver: FakeDriver) -> None:
    await KubeRay(cluster, driver).run(JobState.FAILED, reason="NodeLost")
    await KubeRay(cluster, driver, attempt=2).run()


async def is_suspended(cluster: FakeCluster, driver: FakeDriver) -> None:
    await KubeRay(cluster, driver).start()
    cluster.change("BatchInference", "job", {"spec": {"suspend": True}})
    await until(lambda: cluster.status().get("phase") == "Suspended")
    cluster.change("BatchInference", "job", {"spec": {"suspend": False}})
    await KubeRay(cluster, driver, attempt=2).run()


PLAYS: dict[str, Play] = {
    "succeeds": succeeds,
    "fails": fails,
    "fails-once": fails_once,
    "is-suspended": is_suspended,
}


async def life(killer: Killer, play: Play) -> FakeCluster:
    """A job's life with an operator that is killed once and at once replaced."""
    cluster, driver = FakeCluster(), FakeDriver()
    cluster.apply()
    playing = asyncio.create_task(play(cluster, driver))
    gateway = MemoryGateway(cluster, killer.before, killer.after)
    with contextlib.suppress(BaseExceptionGroup):
        async with operated(gateway, driver, lag=LAG):
            await asyncio.sleep(600)
    async with operated(MemoryGateway(cluster), driver, lag=LAG):
        await until(playing.done)
        await asyncio.sleep(300)
    await playing
    return cluster


def timeless(found: Any) -> Any:
    """The same without what differs from one moment to another."""
    if isinstance(found, dict):
        return {key: timeless(value) for key, value in found.items() if key not in TIMES}
    return [timeless(one) for one in found] if isinstance(found, list) else found


def outcome(cluster: FakeCluster) -> Any:
    """All objects as they stand in the end, and the phases of the job on the way there. That it was
    Planning is only told where an operator finds what another has made."""
    told = (one["phase"] for one in cluster.history)
    phases = [phase for phase, _ in itertools.groupby(told) if phase != "Planning"]
    return timeless({**cluster.objects, "phases": phases})


def undisturbed(play: Play) -> tuple[list[str], Any]:
    """The calls of an operator that lives, and what comes of the job."""
    killer = Killer(NEVER, "before")
    cluster = run(life(killer, play))
    return killer.calls, outcome(cluster)


LIVES = {name: undisturbed(play) for name, play in PLAYS.items()}
KILLS = [
    pytest.param(name, calls, when, id=f"{name}-{when}-{calls}-{call}")
    for name, (made, _) in LIVES.items()
    for calls, call in enumerate(made)
    for when in ("before", "after")
]


def test_the_lives_take_calls_of_every_kind() -> None:
    made = {"create ConfigMap", "create Secret", "create RayJob"}
    calls = {call for each, _ in LIVES.values() for call in each}
    others = {"patch status", "get RayJob", "get Events", "list Pods", "release", "remove"}
    assert calls == made | others


def test_the_lives_come_to_their_ends() -> None:
    ends = {name: found["phases"][-1] for name, (_, found) in LIVES.items()}
    succeeded = dict.fromkeys(["succeeds", "fails-once", "is-suspended"], "Succeeded")
    assert ends == {**succeeded, "fails": "Failed"}


@pytest.mark.parametrize(("name", "calls", "when"), KILLS)
def test_an_operator_that_is_killed_at_any_call_is_replaced_without_a_trace(
    name: str, calls: int, when: str
) -> None:
    killer = Killer(calls, when)
    cluster = run(life(killer, PLAYS[name]))
    assert killer.killed
    assert outcome(cluster) == LIVES[name][1]
