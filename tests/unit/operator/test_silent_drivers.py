"""Drivers that do not answer block no other job, and many drivers are polled less often each."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from batchinference_operator.reconcile import looks
from batchinference_operator.reconcile.ending import POLL_SECONDS
from batchinference_operator.runtime.asking import FORGET_SECONDS, MAX_PAUSE, SLOTS, Asking
from batchinference_operator.runtime.driver import Answer
from batchinference_operator.status.observations import RayJobView
from support.operator.harness import Harness
from support.operator.objects import NAMESPACE, RUNNING, SUCCEEDED, job_body, ray_job_body
from support.operator.virtual_time import clock, in_virtual_time, until

REACHED, SILENT = Answer(reached=True), Answer(reached=False)


@dataclass
class Head:
    """Answers while it is `up`, otherwise times out after 5 seconds."""

    up: bool = False
    asked: list[float] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    async def ask(self, namespace: str, ray_job: RayJobView, token: str) -> Answer:
        self.asked.append(clock())
        if self.up:
            return REACHED
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(5)
        self.at_once -= 1
        return SILENT


@pytest.fixture
def head() -> Head:
    return Head()


@pytest.fixture
def asking(head: Head) -> Asking:
    return Asking(head, clock)


def seen(uid: str = "a", **status: Any) -> RayJobView:
    return replace(RayJobView.of(ray_job_body(**{**RUNNING, **status})), uid=uid)


async def ask(asking: Asking, ray_job: RayJobView) -> Answer:
    return await asking.ask(NAMESPACE, ray_job, "a-token")


@in_virtual_time
async def test_answering_driver_is_asked_each_time(asking: Asking, head: Head) -> None:
    head.up = True
    assert [await ask(asking, seen()) for _ in range(5)] == [REACHED] * 5
    assert len(head.asked) == 5


@in_virtual_time
async def test_silent_driver_is_asked_with_backoff(asking: Asking, head: Head) -> None:
    for _ in range(3600):
        assert await ask(asking, seen()) == SILENT
        await asyncio.sleep(1)
    pauses = [after - before for before, after in itertools.pairwise(head.asked)]
    assert pauses == sorted(pauses)
    assert pauses[0] <= 20
    assert MAX_PAUSE <= pauses[-1] <= MAX_PAUSE + 10


@in_virtual_time
async def test_recovered_driver_is_asked_each_time_again(asking: Asking, head: Head) -> None:
    await ask(asking, seen())
    head.up = True
    await asyncio.sleep(MAX_PAUSE)
    assert [await ask(asking, seen()) for _ in range(3)] == [REACHED] * 3


@in_virtual_time
async def test_driver_of_an_ended_ray_job_is_asked_at_once(asking: Asking, head: Head) -> None:
    await ask(asking, seen())
    head.up = True
    assert await ask(asking, seen(**SUCCEEDED)) == REACHED


@in_virtual_time
async def test_silent_drivers_share_limited_slots(asking: Asking, head: Head) -> None:
    many = [seen(uid=f"uid-{number}") for number in range(50)]
    await asyncio.gather(*(ask(asking, one) for one in many))
    head.most_at_once = 0
    for _ in range(200):
        await asyncio.sleep(1)
        tasks = [asyncio.create_task(ask(asking, one)) for one in many]
    await asyncio.gather(*tasks)
    assert head.most_at_once == SLOTS


@in_virtual_time
async def test_deleted_drivers_are_forgotten(asking: Asking) -> None:
    for number in range(20):
        await ask(asking, seen(uid=f"uid-{number}"))
        await asyncio.sleep(FORGET_SECONDS / 3)
    assert len(asking.silent) <= 5


@in_virtual_time
async def test_silent_drivers_do_not_delay_a_new_job(harness: Harness, asking: Asking) -> None:
    harness.driver = asking  # type: ignore[assignment]
    names = [f"job-{number}" for number in range(60)]
    async with harness.operator(workers=16):
        for name in names:
            harness.cluster.put(job_body(name, uid=f"uid-of-{name}"))
        await until(lambda: all(harness.cluster.get("RayJob", f"{name}-1") for name in names))
        for name in names:
            harness.cluster.patch("RayJob", f"{name}-1", {"status": RUNNING})
        await asyncio.sleep(120)
        for number in range(10):
            begun = clock()
            harness.cluster.put(job_body(f"fresh-{number}", uid=f"uid-fresh-{number}"))
            await until(lambda: harness.cluster.get("RayJob", f"fresh-{number}-1"))  # noqa: B023
            assert clock() - begun <= 1
            await asyncio.sleep(7)


@in_virtual_time
async def test_poll_rate_is_limited_over_all_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 10.0
    monkeypatch.setattr(looks, "ASKS_PER_SECOND", limit)
    few, many = 10, 40
    rates = []
    for count in (few, many):
        harness = Harness()
        async with harness.operator(workers=16):
            for number in range(count):
                name = f"job-{number}"
                harness.cluster.put(job_body(name, uid=f"uid-of-{name}"))
                harness.driver.answers[f"{name}-1"] = REACHED
            await until(lambda: harness.cluster.get("RayJob", f"job-{count - 1}-1"))  # noqa: B023
            for number in range(count):
                harness.cluster.patch("RayJob", f"job-{number}-1", {"status": RUNNING})
            await asyncio.sleep(60)
            before = len(harness.driver.asked)
            await asyncio.sleep(20)
            rates.append((len(harness.driver.asked) - before) / 20)
    assert rates[0] == pytest.approx(few / POLL_SECONDS, rel=0.3)
    assert rates[1] <= limit * 1.2
