"""The queue of keys: each once, never twice at a time, none lost, again after a while."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference_operator.runtime.queue import (
    FIRST_RETRY_SECONDS,
    MAX_RETRY_SECONDS,
    KeyedQueue,
)
from support.operator.virtual_time import clock, in_virtual_time, run
from support.tiers import examples


async def handed_out(queue: KeyedQueue[str], seconds: float) -> list[tuple[float, str]]:
    """All that is handed out within so many seconds, and when. Each key is done at once."""
    found = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                key = await queue.get()
                found.append((clock(), key))
                queue.done(key)
    return found


@in_virtual_time
async def test_keys_come_out_in_the_order_in_which_they_went_in() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    for key in "cab":
        queue.add(key)
    assert [key for _, key in await handed_out(queue, 1)] == ["c", "a", "b"]


@in_virtual_time
async def test_a_key_is_in_the_queue_once() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    for _ in range(5):
        queue.add("a")
    assert len(queue) == 1
    assert await handed_out(queue, 1) == [(0, "a")]


@in_virtual_time
async def test_a_key_that_is_added_during_the_work_comes_again_after_it() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add("a")
    key = await queue.get()
    queue.add(key)
    queue.add(key)
    assert len(queue) == 0
    queue.done(key)
    assert await handed_out(queue, 1) == [(0, "a")]


@in_virtual_time
async def test_a_worker_that_waits_is_woken_by_the_next_key() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(3600)
    queue.add("a")
    assert await waiting == "a"
    assert clock() == 3600


@in_virtual_time
async def test_a_worker_that_is_cancelled_takes_no_key_with_it() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    first, second = (asyncio.create_task(queue.get()) for _ in range(2))
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()  # in the same moment: it has been promised the key and not yet taken it
    assert await second == "a"
    with pytest.raises(asyncio.CancelledError):
        await first


@in_virtual_time
async def test_a_key_comes_back_after_its_delay() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add_after("a", 30)
    assert await handed_out(queue, 100) == [(30, "a")]


@pytest.mark.parametrize(
    ("delays", "expected"),
    [((30, 2), 2), ((2, 30), 2), ((5, 5), 5), ((30, 10, 20), 10)],
    ids=["sooner-later", "later-sooner", "same", "three"],
)
@in_virtual_time
async def test_of_several_delays_the_soonest_counts(
    delays: tuple[float, ...], expected: float
) -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    for delay in delays:
        queue.add_after("a", delay)
    assert await handed_out(queue, 100) == [(expected, "a")]


@in_virtual_time
async def test_add_cancels_the_delayed_add() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add_after("a", 30)
    await asyncio.sleep(1)
    queue.add("a")
    assert await handed_out(queue, 100) == [(1, "a")]


@in_virtual_time
async def test_a_key_that_waits_already_needs_no_delay() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add("a")
    queue.add_after("a", 30)
    assert await handed_out(queue, 100) == [(0, "a")]


@in_virtual_time
async def test_a_delay_that_ends_during_the_work_counts_after_it() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add("a")
    key = await queue.get()
    queue.add_after(key, 10)
    await asyncio.sleep(20)
    assert len(queue) == 0
    queue.done(key)
    assert await handed_out(queue, 100) == [(20, "a")]


@in_virtual_time
async def test_each_failure_doubles_the_delay_up_to_a_cap() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    delays = [queue.retry("a") for _ in range(2000)]
    assert delays[:8] == [0.5, 1, 2, 4, 8, 16, 32, 60]
    assert set(delays[7:]) == {MAX_RETRY_SECONDS}
    assert delays[0] == FIRST_RETRY_SECONDS


@in_virtual_time
async def test_a_failed_key_comes_back_after_its_delay() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    times = []
    queue.add("a")
    for _ in range(4):
        key = await queue.get()
        times.append(clock())
        queue.retry(key)
        queue.done(key)
    assert times == [0, 0.5, 1.5, 3.5]


@in_virtual_time
async def test_a_look_that_goes_well_makes_the_next_failure_the_first() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    for _ in range(5):
        queue.retry("a")
    queue.forgive("a")
    assert queue.retry("a") == FIRST_RETRY_SECONDS


@in_virtual_time
async def test_failures_of_one_key_do_not_slow_another() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    for _ in range(9):
        queue.retry("a")
    assert queue.retry("b") == FIRST_RETRY_SECONDS


@in_virtual_time
async def test_forgotten_key_leaves_no_timer() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    queue.retry("a")
    queue.add_after("b", 5)
    for key in "abc":
        queue.forget(key)
    assert await handed_out(queue, 100) == []
    kept = [value for value in vars(queue).values() if hasattr(value, "__len__")]
    assert [len(value) for value in kept] == [0] * len(kept)


@in_virtual_time
async def test_lanes_have_their_turns() -> None:
    queue: KeyedQueue[str] = KeyedQueue(lane=lambda key: key[0])
    for key in ("a1", "a2", "a3", "b1", "c1", "b2"):
        queue.add(key)
    keys = [key for _, key in await handed_out(queue, 1)]
    assert keys == ["a1", "b1", "c1", "a2", "b2", "a3"]


@given(
    steps=st.lists(st.none() | st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=120)
)
@settings(max_examples=examples(200), deadline=None)
def test_a_lane_that_waits_is_never_passed_over_twice(
    steps: list[tuple[str, int] | None],
) -> None:
    """Whatever is added and taken (None): while a key of a lane waits, each other lane hands out
    one key at most before that lane does."""

    async def body() -> None:
        queue: KeyedQueue[tuple[str, int]] = KeyedQueue(lane=lambda key: key[0])
        waiting: set[tuple[str, int]] = set()
        passed: dict[str, list[str]] = {}
        for step in steps:
            if step is not None:
                queue.add(step)
                waiting.add(step)
                passed.setdefault(step[0], [])
            elif waiting:
                key = await queue.get()
                queue.done(key)
                waiting.remove(key)
                passed.pop(key[0])
                for others in passed.values():
                    assert key[0] not in others
                    others.append(key[0])
                if any(lane == key[0] for lane, _ in waiting):
                    passed[key[0]] = []

    run(body())


@given(
    added=st.lists(st.tuples(st.sampled_from("abcde"), st.floats(0, 5)), max_size=60),
    workers=st.integers(1, 4),
    slowness=st.floats(0, 3),
)
@settings(max_examples=examples(100), deadline=None)
def test_keys_added_during_work_are_processed_afterwards(
    added: list[tuple[str, float]], workers: int, slowness: float
) -> None:
    """Each addition is followed by the beginning of a look, and no key has two looks at a time."""
    looks: list[tuple[str, float, float]] = []

    async def work(queue: KeyedQueue[str]) -> None:
        while True:
            key = await queue.get()
            begun = clock()
            await asyncio.sleep(slowness)
            looks.append((key, begun, clock()))
            queue.done(key)

    async def body() -> list[tuple[str, float]]:
        queue: KeyedQueue[str] = KeyedQueue()
        tasks = [asyncio.create_task(work(queue)) for _ in range(workers)]
        asked = []
        for key, pause in added:
            await asyncio.sleep(pause)
            queue.add(key)
            asked.append((key, clock()))
        await asyncio.sleep(1000)
        for task in tasks:
            task.cancel()
        return asked

    for key, when in run(body()):
        assert any(look[0] == key and look[1] >= when for look in looks)
    for key in "abcde":
        times = sorted((begun, end) for name, begun, end in looks if name == key)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(times))
