"""Thousands of jobs at once: what keeps the operator from work that tells nobody anything."""

from __future__ import annotations

from collections import Counter

from batchinference_operator.runtime.controller import BACKLOG, BACKLOG_SECONDS
from support.virtual_time import clock, in_leaping_time, until
from support.world import World

MORE = 20
NAMES = [f"job-{number:03d}" for number in range(BACKLOG + MORE)]


def applied() -> World:
    world = World()
    for name in NAMES:
        world.cluster.apply(name)
    return world


@in_leaping_time
async def test_while_many_wait_objects_come_before_words() -> None:
    world = applied()
    async with world.operated(workers=1):
        await until(lambda: all(world.phase(name) == "Starting" for name in NAMES))
        calls = [call for _, call in world.calls]
        before = calls[: calls.index("patch status")]
        assert Counter(before) == dict.fromkeys(
            ("create ConfigMap", "create RayJob", "create Secret"), MORE + 1
        )
        assert clock() < 2 * BACKLOG_SECONDS
    assert world.count("create RayJob") == len(NAMES)


@in_leaping_time
async def test_what_is_said_already_is_put_right_at_once() -> None:
    world = World()
    for name in NAMES:
        world.cluster.apply(name, suspend=True)
    async with world.operated(workers=1):
        await until(lambda: all(world.phase(name) == "Suspended" for name in NAMES))
        for name in NAMES:
            world.cluster.change("BatchInference", name, {"spec": {"suspend": False}})
        await until(lambda: all(world.phase(name) == "Starting" for name in NAMES), 1)


@in_leaping_time
async def test_a_job_begins_at_the_cost_of_four_calls() -> None:
    world = World()
    world.cluster.apply()
    async with world.operated():
        await until(lambda: world.phase() == "Starting")
        await until(lambda: clock() > 1)
    made = ["create ConfigMap", "create RayJob", "create Secret", "patch status"]
    assert [call for _, call in world.calls] == made


@in_leaping_time
async def test_a_job_that_is_gone_is_found_to_be_though_many_wait() -> None:
    world = applied()
    async with world.operated(workers=1):
        gone = NAMES[0]
        await until(lambda: world.cluster.get("RayJob", f"{gone}-1"))
        world.cluster.delete("BatchInference", gone, unseen=True)
        world.cluster.delete("RayJob", f"{gone}-1")
        await until(lambda: clock() > 3 * BACKLOG_SECONDS)
    made = [call for at, call in world.calls if at > 2 * BACKLOG_SECONDS and "create" in call]
    assert made == []
