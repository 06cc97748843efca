"""The work queue behaves like a model, for any sequence of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from batchinference_operator.controller.workqueue import MAX_RETRY_SECONDS, WorkQueue
from support.operator.virtual_time import VirtualTimeLoop, clock
from support.tiers import examples

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
