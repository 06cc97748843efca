"""Never more jobs run at a time than may, and the next begins as soon as it can."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from batchinference_operator.reconcile.turns import Concurrency
from batchinference_operator.runtime.gateway import Conflict, Refused, Unreachable
from batchinference_operator.runtime.pod_cache import DOUBT_SECONDS
from batchinference_operator.status.observations import RayJobView
from support.operator.fake_cluster import FakeGateway
from support.operator.harness import LAGS, Harness
from support.operator.objects import SETTINGS, ray_job_body
from support.operator.virtual_time import in_virtual_time, run, until
from support.tiers import examples

NAMES = [f"job-{letter}" for letter in "abcdef"]
FAULTS: list[Callable[[], Exception]] = [
    lambda: Conflict("the object has been modified"),
    lambda: Refused("403: exceeded quota"),
    lambda: Unreachable("no answer"),
]


def at_most(count: int) -> Any:
    return replace(SETTINGS, concurrency=Concurrency(in_all=count))


def live(harness: Harness) -> list[str]:
    """The RayJobs that have not ended."""
    return [name for (kind, name), body in harness.cluster.objects.items()
            if kind == "RayJob" and not RayJobView.of(body).ended]  # fmt: skip


def watched(harness: Harness) -> list[int]:
    """How many RayJobs were live at each change of the cluster."""
    counts: list[int] = []
    harness.cluster.watchers.append(lambda event, body: counts.append(len(live(harness))))
    return counts


async def runs(harness: Harness, name: str) -> None:
    await until(lambda: harness.cluster.get("RayJob", f"{name}-1"), 10_000)
    await harness.ray_job(name).run()


@pytest.mark.parametrize("lag", LAGS, ids=str)
@pytest.mark.parametrize("limit", [1, 2])
@in_virtual_time
async def test_concurrency_limit_holds_to_the_end(limit: int, lag: dict[str, float]) -> None:
    harness = Harness()
    counts = watched(harness)
    for name in NAMES:
        harness.cluster.apply(name)
    async with harness.operator(lag=lag, settings=at_most(limit), workers=4):
        await asyncio.gather(*(runs(harness, name) for name in NAMES))
        await until(lambda: all(map(harness.is_finished, NAMES)))
    assert {harness.phase(name) for name in NAMES} == {"Succeeded"}
    assert max(counts) == limit


@in_virtual_time
async def test_jobs_start_by_priority_and_age() -> None:
    harness, begun = Harness(), []
    for name, priority in zip(NAMES, [0, 0, 5, -1, 5, 0], strict=True):
        harness.cluster.apply(name, priority=priority)
        await asyncio.sleep(1)
    harness.cluster.watchers.append(
        lambda event, body: (
            begun.append(body["metadata"]["name"][:-2])
            if body["kind"] == "RayJob" and event == "ADDED"
            else None
        )
    )
    async with harness.operator(settings=at_most(1), workers=4):
        await asyncio.gather(*(runs(harness, name) for name in NAMES))
    assert begun == ["job-c", "job-e", "job-a", "job-b", "job-f", "job-d"]


@in_virtual_time
async def test_the_next_begins_as_soon_as_one_is_suspended() -> None:
    harness = Harness()
    harness.cluster.apply("job-a")
    async with harness.operator(settings=at_most(1)):
        await until(lambda: harness.phase("job-a") == "Starting")
        harness.cluster.apply("job-b")
        await until(lambda: harness.reason("job-b") == "WaitingForTurn")
        harness.cluster.patch("BatchInference", "job-a", {"spec": {"suspend": True}})
        await until(lambda: harness.phase("job-b") == "Starting", 10)
        assert live(harness) == ["job-b-1"]
        harness.cluster.patch("BatchInference", "job-a", {"spec": {"suspend": False}})
        await until(lambda: harness.reason("job-a") == "WaitingForTurn")


@in_virtual_time
async def test_ray_job_deleted_unseen_gives_its_turn_back() -> None:
    harness = Harness()
    harness.cluster.apply("job-a", deadlines={"pending": "1m"})
    async with harness.operator(settings=at_most(1)):
        await until(lambda: harness.phase("job-a") == "Starting")
        harness.cluster.apply("job-b")
        harness.cluster.patch("RayJob", "job-a-1", {"metadata": {"finalizers": ["kuberay"]}})
        harness.cluster.finalizers_hold = True
        await until(lambda: harness.phase("job-a") == "Failed")
        await asyncio.sleep(1)
        harness.cluster.finalizers_hold = False
        harness.cluster.delete("RayJob", "job-a-1", unseen=True)
        await until(lambda: harness.phase("job-b") == "Starting", 2 * DOUBT_SECONDS)


@in_virtual_time
async def test_job_with_taken_name_blocks_nobody() -> None:
    harness = Harness()
    harness.cluster.apply("job-a")
    await asyncio.sleep(1)
    harness.cluster.apply("job-b")
    harness.cluster.put(ray_job_body("job-a-1", owner_uid=None))
    async with harness.operator(settings=at_most(1)):
        await until(lambda: harness.phase("job-b") == "Starting")
        assert harness.reason("job-a") == "NameTaken"


@in_virtual_time
async def test_refused_job_gives_its_turn_back() -> None:
    harness, full = Harness(), True

    class Picky(FakeGateway):
        async def create(self, body: dict[str, Any]) -> dict[str, Any] | None:
            if full and body["kind"] == "RayJob" and body["metadata"]["name"] == "job-a-1":
                raise Refused("403: exceeded quota")
            return await super().create(body)

    harness.gateway = Picky(harness.cluster)
    harness.cluster.apply("job-a")
    await asyncio.sleep(1)
    harness.cluster.apply("job-b")
    async with harness.operator(settings=at_most(1)):
        await until(lambda: harness.phase("job-b") == "Starting", 10)
        full = False
        await runs(harness, "job-b")
        await runs(harness, "job-a")
        await until(lambda: harness.is_finished("job-a"))
    assert harness.phase("job-a") == "Succeeded"
    assert harness.cluster.status("job-a")["attempt"] == 1


@in_virtual_time
async def test_refused_job_is_retried_with_backoff() -> None:
    harness = Harness()
    harness.fail_call("create RayJob", Refused("403: exceeded quota"))
    harness.cluster.apply("job-a")
    async with harness.operator(settings=at_most(1)):
        await asyncio.sleep(600)
        assert (harness.phase("job-a"), harness.reason("job-a")) == ("Pending", "Refused")
    assert 8 <= harness.count("create RayJob") <= 12
    assert harness.count("patch status") <= 40


@in_virtual_time
async def test_name_taken_at_creation_gives_the_turn_back() -> None:
    harness = Harness()

    class Late(FakeGateway):
        async def create(self, body: dict[str, Any]) -> dict[str, Any] | None:
            if body["metadata"]["name"] == "job-a-1" and body["kind"] == "RayJob":
                harness.cluster.put(ray_job_body("job-a-1", owner_uid=None))
            return await super().create(body)

    harness.gateway = Late(harness.cluster)
    harness.cluster.apply("job-a")
    await asyncio.sleep(1)
    harness.cluster.apply("job-b")
    async with harness.operator(settings=at_most(1)):
        await until(lambda: harness.phase("job-b") == "Starting", 60)
        assert harness.reason("job-a") == "NameTaken"


@in_virtual_time
async def test_ray_job_of_a_deleted_job_counts_until_it_is_gone() -> None:
    harness = Harness()
    harness.cluster.apply("job-a")
    async with harness.operator(settings=at_most(1)):
        await until(lambda: harness.phase("job-a") == "Starting")
        harness.cluster.apply("job-b")
        await until(lambda: harness.reason("job-b") == "WaitingForTurn")
        harness.cluster.delete("BatchInference", "job-a")
        await asyncio.sleep(1000)
        assert live(harness) == ["job-a-1"]
        harness.cluster.delete("RayJob", "job-a-1", unseen=True)
        await until(lambda: harness.phase("job-b") == "Starting", 1000)


@in_virtual_time
async def test_waiting_job_deleted_unseen_blocks_nobody() -> None:
    harness = Harness()
    for name in NAMES[:3]:
        harness.cluster.apply(name)
        await asyncio.sleep(1)
    async with harness.operator(settings=at_most(1)):
        await until(lambda: harness.reason("job-c") == "WaitingForTurn")
        harness.cluster.delete("BatchInference", "job-b", unseen=True)
        await harness.ray_job("job-a").run()
        await until(lambda: harness.phase("job-c") == "Starting")


@pytest.mark.scaled("model-check")
@pytest.mark.parametrize("seed", range(examples(24, 6)))
def test_concurrency_limit_holds_through_faults_and_restarts(seed: int) -> None:
    run(survives(random.Random(seed)))


async def survives(chance: random.Random) -> None:
    harness = Harness()
    counts, limit = watched(harness), chance.randint(1, 2)
    faults = [40]

    def disturbed(call: str) -> None:
        if faults[0] and not call.startswith("list") and chance.random() < 0.15:
            faults[0] -= 1
            raise chance.choice(FAULTS)()

    harness.gateway = FakeGateway(harness.cluster, before=disturbed, after=disturbed)
    plays = [asyncio.create_task(runs(harness, name)) for name in NAMES]
    for name in NAMES:
        harness.cluster.apply(name, priority=chance.randint(0, 1))
    while not all(map(harness.is_finished, NAMES)):
        lag = chance.choice(LAGS)
        async with harness.operator(lag=lag, settings=at_most(limit), workers=4):
            await asyncio.sleep(chance.choice([0.3, 3, 30, 300]))
    await asyncio.gather(*plays)
    assert {harness.phase(name) for name in NAMES} == {"Succeeded"}
    assert max(counts) <= limit
