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
from support.fake_cluster import MemoryGateway
from support.operator_objects import SETTINGS, ray_job_body
from support.virtual_time import in_leaping_time, run, until
from support.world import LAGS, World

NAMES = [f"job-{letter}" for letter in "abcdef"]
FAULTS: list[Callable[[], Exception]] = [
    lambda: Conflict("the object has been modified"),
    lambda: Refused("403: exceeded quota"),
    lambda: Unreachable("no answer"),
]


def at_most(count: int) -> Any:
    return replace(SETTINGS, concurrency=Concurrency(in_all=count))


def live(world: World) -> list[str]:
    """The RayJobs that have not ended."""
    return [name for (kind, name), body in world.cluster.objects.items()
            if kind == "RayJob" and not RayJobView.of(body).ended]  # fmt: skip


def watched(world: World) -> list[int]:
    """How many RayJobs were live at each change of the cluster."""
    counts: list[int] = []
    world.cluster.listeners.append(lambda event, body: counts.append(len(live(world))))
    return counts


async def runs(world: World, name: str) -> None:
    await until(lambda: world.cluster.get("RayJob", f"{name}-1"), 10_000)
    await world.kuberay(name).run()


@pytest.mark.parametrize("lag", LAGS, ids=str)
@pytest.mark.parametrize("limit", [1, 2])
@in_leaping_time
async def test_all_run_to_their_end_so_many_at_a_time(limit: int, lag: dict[str, float]) -> None:
    world = World()
    counts = watched(world)
    for name in NAMES:
        world.cluster.apply(name)
    async with world.operated(lag=lag, settings=at_most(limit), workers=4):
        await asyncio.gather(*(runs(world, name) for name in NAMES))
        await until(lambda: all(map(world.over, NAMES)))
    assert {world.phase(name) for name in NAMES} == {"Succeeded"}
    assert max(counts) == limit


@in_leaping_time
async def test_they_begin_by_priority_and_then_by_age() -> None:
    world, begun = World(), []
    for name, priority in zip(NAMES, [0, 0, 5, -1, 5, 0], strict=True):
        world.cluster.apply(name, priority=priority)
        await asyncio.sleep(1)
    world.cluster.listeners.append(
        lambda event, body: (
            begun.append(body["metadata"]["name"][:-2])
            if body["kind"] == "RayJob" and event == "ADDED"
            else None
        )
    )
    async with world.operated(settings=at_most(1), workers=4):
        await asyncio.gather(*(runs(world, name) for name in NAMES))
    assert begun == ["job-c", "job-e", "job-a", "job-b", "job-f", "job-d"]


@in_leaping_time
async def test_the_next_begins_as_soon_as_one_is_suspended() -> None:
    world = World()
    world.cluster.apply("job-a")
    async with world.operated(settings=at_most(1)):
        await until(lambda: world.phase("job-a") == "Starting")
        world.cluster.apply("job-b")
        await until(lambda: world.reason("job-b") == "WaitingForTurn")
        world.cluster.change("BatchInference", "job-a", {"spec": {"suspend": True}})
        await until(lambda: world.phase("job-b") == "Starting", 10)
        assert live(world) == ["job-b-1"]
        world.cluster.change("BatchInference", "job-a", {"spec": {"suspend": False}})
        await until(lambda: world.reason("job-a") == "WaitingForTurn")


@in_leaping_time
async def test_a_ray_job_whose_end_no_watch_has_told_of_gives_its_turn_back() -> None:
    world = World()
    world.cluster.apply("job-a", deadlines={"pending": "1m"})
    async with world.operated(settings=at_most(1)):
        await until(lambda: world.phase("job-a") == "Starting")
        world.cluster.apply("job-b")
        world.cluster.change("RayJob", "job-a-1", {"metadata": {"finalizers": ["kuberay"]}})
        world.cluster.kuberay_away = True
        await until(lambda: world.phase("job-a") == "Failed")
        await asyncio.sleep(1)
        world.cluster.kuberay_away = False
        world.cluster.delete("RayJob", "job-a-1", unseen=True)
        await until(lambda: world.phase("job-b") == "Starting", 2 * DOUBT_SECONDS)


@in_leaping_time
async def test_one_whose_name_is_taken_keeps_nobody_waiting() -> None:
    world = World()
    world.cluster.apply("job-a")
    await asyncio.sleep(1)
    world.cluster.apply("job-b")
    world.cluster.put(ray_job_body("job-a-1", owner_uid=None))
    async with world.operated(settings=at_most(1)):
        await until(lambda: world.phase("job-b") == "Starting")
        assert world.reason("job-a") == "NameTaken"


@in_leaping_time
async def test_one_that_is_refused_gives_its_turn_back_and_has_another() -> None:
    world, full = World(), True

    class Picky(MemoryGateway):
        async def create(self, body: dict[str, Any]) -> dict[str, Any] | None:
            if full and body["kind"] == "RayJob" and body["metadata"]["name"] == "job-a-1":
                raise Refused("403: exceeded quota")
            return await super().create(body)

    world.gateway = Picky(world.cluster)
    world.cluster.apply("job-a")
    await asyncio.sleep(1)
    world.cluster.apply("job-b")
    async with world.operated(settings=at_most(1)):
        await until(lambda: world.phase("job-b") == "Starting", 10)
        full = False
        await runs(world, "job-b")
        await runs(world, "job-a")
        await until(lambda: world.over("job-a"))
    assert world.phase("job-a") == "Succeeded"
    assert world.cluster.status("job-a")["attempt"] == 1


@in_leaping_time
async def test_one_that_is_refused_alone_is_tried_again_but_not_in_a_hurry() -> None:
    world = World()
    world.fails("create RayJob", Refused("403: exceeded quota"))
    world.cluster.apply("job-a")
    async with world.operated(settings=at_most(1)):
        await asyncio.sleep(600)
        assert (world.phase("job-a"), world.reason("job-a")) == ("Pending", "Refused")
    assert 8 <= world.count("create RayJob") <= 12
    assert world.count("patch status") <= 40


@in_leaping_time
async def test_a_name_that_is_taken_in_the_last_moment_costs_the_turn() -> None:
    world = World()

    class Late(MemoryGateway):
        async def create(self, body: dict[str, Any]) -> dict[str, Any] | None:
            if body["metadata"]["name"] == "job-a-1" and body["kind"] == "RayJob":
                world.cluster.put(ray_job_body("job-a-1", owner_uid=None))
            return await super().create(body)

    world.gateway = Late(world.cluster)
    world.cluster.apply("job-a")
    await asyncio.sleep(1)
    world.cluster.apply("job-b")
    async with world.operated(settings=at_most(1)):
        await until(lambda: world.phase("job-b") == "Starting", 60)
        assert world.reason("job-a") == "NameTaken"


@in_leaping_time
async def test_the_ray_job_of_a_deleted_job_counts_until_it_is_gone() -> None:
    world = World()
    world.cluster.apply("job-a")
    async with world.operated(settings=at_most(1)):
        await until(lambda: world.phase("job-a") == "Starting")
        world.cluster.apply("job-b")
        await until(lambda: world.reason("job-b") == "WaitingForTurn")
        world.cluster.delete("BatchInference", "job-a")
        await asyncio.sleep(1000)
        assert live(world) == ["job-a-1"]
        world.cluster.delete("RayJob", "job-a-1", unseen=True)
        await until(lambda: world.phase("job-b") == "Starting", 1000)


@in_leaping_time
async def test_a_job_that_is_deleted_unseen_while_it_waits_is_no_obstacle() -> None:
    world = World()
    for name in NAMES[:3]:
        world.cluster.apply(name)
        await asyncio.sleep(1)
    async with world.operated(settings=at_most(1)):
        await until(lambda: world.reason("job-c") == "WaitingForTurn")
        world.cluster.delete("BatchInference", "job-b", unseen=True)
        await world.kuberay("job-a").run()
        await until(lambda: world.phase("job-c") == "Starting")


@pytest.mark.parametrize("seed", range(12))
def test_faults_and_restarts_let_no_more_begin_and_keep_none_from_its_end(seed: int) -> None:
    run(survives(random.Random(seed)))


async def survives(chance: random.Random) -> None:
    world = World()
    counts, limit = watched(world), chance.randint(1, 2)
    faults = [40]

    def disturbed(call: str) -> None:
        if faults[0] and not call.startswith("list") and chance.random() < 0.15:
            faults[0] -= 1
            raise chance.choice(FAULTS)()

    world.gateway = MemoryGateway(world.cluster, before=disturbed, after=disturbed)
    plays = [asyncio.create_task(runs(world, name)) for name in NAMES]
    for name in NAMES:
        world.cluster.apply(name, priority=chance.randint(0, 1))
    while not all(map(world.over, NAMES)):
        lag = chance.choice(LAGS)
        async with world.operated(lag=lag, settings=at_most(limit), workers=4):
            await asyncio.sleep(chance.choice([0.3, 3, 30, 300]))
    await asyncio.gather(*plays)
    assert {world.phase(name) for name in NAMES} == {"Succeeded"}
    assert max(counts) <= limit
