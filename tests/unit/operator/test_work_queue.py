"""The work queue holds each key once, loses none, gives it to one worker, and supports delays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from batchinference_operator.controller.work_queue import BUSY_SECONDS, MAX_RETRY_SECONDS, WorkQueue
from support.operator.virtual_time import VirtualTimeLoop, clock, in_virtual_time, run
from support.tiers import examples


@pytest.fixture
def queue() -> WorkQueue[str]:
    return WorkQueue()


async def drain(queue: WorkQueue[str], seconds: float = 100) -> list[tuple[float, str]]:
    """Return the keys that are handed out within this time, with their times. Each key is done
    immediately."""
    result = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                key = await queue.get()
                result.append((clock(), key))
                queue.done(key)
    return result


@in_virtual_time
async def test_keys_are_handed_out_once_and_in_order(queue: WorkQueue[str]) -> None:
    for key in "cabcc":
        queue.add(key)
    assert len(queue) == 3
    assert await drain(queue) == [(0, "c"), (0, "a"), (0, "b")]


@in_virtual_time
async def test_waiting_worker_is_woken_by_the_next_key(queue: WorkQueue[str]) -> None:
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(3600)
    queue.add("a")
    assert await waiting == "a"
    assert clock() == 3600


@in_virtual_time
async def test_cancelled_worker_loses_no_key(queue: WorkQueue[str]) -> None:
    first, second = (asyncio.create_task(queue.get()) for _ in range(2))
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()  # while the key is assigned to it, but not taken yet
    assert await second == "a"
    with pytest.raises(asyncio.CancelledError):
        await first


@in_virtual_time
async def test_forgotten_key_leaves_no_timer(queue: WorkQueue[str]) -> None:
    queue.add_rate_limited("a")
    queue.add_after("b", 5)
    for key in "abc":
        queue.drop(key)
    assert await drain(queue) == []
    kept = [value for value in vars(queue).values() if hasattr(value, "__len__")]
    assert not any(map(len, kept))


@in_virtual_time
async def test_flows_are_served_round_robin() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a1", "a2", "a3", "b1", "c1", "b2"):
        queue.add(key)
    assert [key for _, key in await drain(queue)] == ["a1", "b1", "c1", "a2", "b2", "a3"]


@in_virtual_time
async def test_flow_that_uses_much_cpu_time_is_paused() -> None:
    """Keys of the flow wait for ten times as long. Keys of other flows are not delayed."""
    used = 0.0
    queue: WorkQueue[str] = WorkQueue(cpu_clock=lambda: used)
    for key in ("a1", "a2", "b1"):
        queue.add(key)
    assert await queue.get() == "a1"
    for _ in range(2):
        with queue.count_cpu_time("a1"):
            used += 2.0
    queue.add("a1")
    queue.done("a1")
    queue.add("a3")
    with queue.count_cpu_time("b0"):
        used += BUSY_SECONDS
    assert len(queue) == 4
    assert await drain(queue) == [(0, "b1"), (40, "a2"), (40, "a1"), (40, "a3")]


@given(
    steps=st.lists(st.none() | st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=120)
)
@settings(max_examples=examples(200), deadline=None)
def test_waiting_flow_is_skipped_once_at_most(steps: list[tuple[str, int] | None]) -> None:
    """While a key of a lane waits, each other lane hands out at most one key before it. A step
    adds a key, or takes one (None)."""

    async def body() -> None:
        queue: WorkQueue[tuple[str, int]] = WorkQueue()
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
                if any(flow == key[0] for flow, _ in waiting):
                    passed[key[0]] = []

    run(body())


Result = TypeVar("Result")
KEYS = st.sampled_from("abc")
SECONDS = st.integers(0, 50).map(float)


class Queue(RuleBasedStateMachine):
    """The model: when each key is due, which keys are in progress, how often each has failed."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.queue: WorkQueue[str] = WorkQueue()
        self.due: dict[str, float] = {}
        self.active: set[str] = set()
        self.failures: dict[str, int] = {}

    def teardown(self) -> None:
        self.runner.close()

    def now(self) -> float:
        return self.call(clock)

    def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call a function in the event loop and return its result."""

        async def body() -> Result:
            return function(*args)

        return self.runner.run(body())

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self.call(self.queue.add, key)
        self.expect_due(key, self.now())

    @rule(key=KEYS, seconds=SECONDS)
    def add_after(self, key: str, seconds: float) -> None:
        self.expect_due(key, self.now() + seconds)
        self.call(self.queue.add_after, key, seconds)

    def expect_due(self, key: str, due: float) -> None:
        self.due[key] = min(self.due.get(key, due), due)

    @rule(key=KEYS)
    def retry(self, key: str) -> None:
        now = self.now()
        delay = self.call(self.queue.add_rate_limited, key)
        failures = self.failures.get(key, 0)
        assert delay == min(0.5 * 2**failures, MAX_RETRY_SECONDS)
        self.failures[key] = failures + 1
        self.expect_due(key, now + delay)

    @rule(key=KEYS)
    def forget(self, key: str) -> None:
        self.queue.forget(key)
        self.failures.pop(key, None)

    @rule(seconds=SECONDS)
    def advance_clock(self, seconds: float) -> None:
        self.runner.run(asyncio.sleep(seconds))

    @rule()
    @precondition(lambda self: len(self.queue))
    def get(self) -> None:
        key = self.runner.run(self.queue.get())
        assert key not in self.active, "two workers have the key"
        assert self.due.pop(key) <= self.now(), "handed out before it is due"
        self.active.add(key)

    @rule(data=st.data())
    @precondition(lambda self: self.active)
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.active)))
        self.active.remove(key)
        self.queue.done(key)

    @invariant()
    def due_keys_are_in_the_queue(self) -> None:
        self.runner.run(asyncio.sleep(0.01))  # runs the timers that are due now
        now = self.now()
        due = [key for key, when in self.due.items() if when <= now and key not in self.active]
        late = [key for key, when in self.due.items() if when <= now - 0.1]
        assert len(self.queue) <= len(due)
        assert len(self.queue) >= len([key for key in late if key not in self.active])
        assert all(map(self.queue.is_queued, late))


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


@in_virtual_time
async def test_flow_at_its_limit_lets_others_pass() -> None:
    queue: WorkQueue[str] = WorkQueue(max_active=2)
    for key in ("a1", "a2", "a3", "b1"):
        queue.add(key)
    assert [await queue.get() for _ in range(3)] == ["a1", "b1", "a2"]
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(1)
    assert not waiting.done()
    queue.done("a1")
    assert await waiting == "a3"


async def test_key_of_a_flow_at_its_limit_wakes_one_worker() -> None:
    """A worker that is woken for no key costs time: thousands of drivers may wait in a flow."""
    queue: WorkQueue[tuple[str, int]] = WorkQueue(max_active=2)
    for number in range(100):
        queue.add(("a", number))
    active = await queue.get()
    await queue.get()
    assert queue._ready.locked()
    queue.done(active)
    assert queue._ready._value == 1
    assert len(queue) == 98
