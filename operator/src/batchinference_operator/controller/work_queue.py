"""The work queue of keys to reconcile.

Keys wait in flows, for instance one flow per namespace. Flows are served round-robin, so that a
long flow does not delay a short one. A flow that has used much CPU time is paused, so that it does
not block the event loop for others. A key is in the queue at most once, and at most one worker
processes it. A key that is added while a worker processes it is processed again afterwards.
"""

import asyncio
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Sequence[Any])

FIRST_RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 60.0
BUSY_SECONDS, PAUSE_FACTOR = 0.1, 10.0
"""CPU seconds for one key above which its flow is paused, and pause seconds per CPU second."""


@dataclass(eq=False)
class WorkQueue(Generic[Key]):
    """A work queue. The first part of a key is its flow: the namespace of an object. All methods
    must be called in one event loop."""

    cpu_clock: Callable[[], float] = time.thread_time
    first_retry_seconds: float = FIRST_RETRY_SECONDS
    max_active: int = sys.maxsize
    """Maximum number of keys of a flow that are processed at once."""
    _flows: dict[Any, deque[Key]] = field(default_factory=dict)
    """The keys to process, by flow. The next flow to serve comes first."""
    _paused: dict[Any, deque[Key]] = field(default_factory=dict)
    """The keys to process of each flow that is paused, or has `max_active` keys in process."""
    _pauses: dict[Any, asyncio.TimerHandle] = field(default_factory=dict)
    _dirty: set[Key] = field(default_factory=set)
    """The keys that were added and not yet given to a worker."""
    _active: set[Key] = field(default_factory=set)
    """The keys that a worker processes."""
    _active_per_flow: Counter[Any] = field(default_factory=Counter)
    _failures: dict[Key, int] = field(default_factory=dict)
    _timers: dict[Key, asyncio.TimerHandle] = field(default_factory=dict)
    _ready: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    def add(self, key: Key) -> None:
        """Queue a key for processing as soon as possible."""
        self._cancel_timer(key)
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._active:
            self._make_ready(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Queue a key after a delay, unless it will be queued earlier anyway."""
        if key in self._dirty:
            return
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= loop.time() + seconds:
            return
        self._cancel_timer(key)
        self._timers[key] = loop.call_later(seconds, self.add, key)

    def is_queued(self, key: Key) -> bool:
        """Return whether a key is queued without a delay."""
        return key in self._dirty

    async def get(self) -> Key:
        """Wait for the next key and return it. Afterwards, `done` must be called for the key."""
        await self._ready.acquire()
        while not self._flows:  # the flow of the ready key was paused meanwhile
            await self._ready.acquire()
        flow, keys = next(iter(self._flows.items()))
        key = keys.popleft()
        del self._flows[flow]
        if keys:
            self._flows[flow] = keys  # behind the other flows
        self._dirty.discard(key)
        self._active.add(key)
        self._active_per_flow[flow] += 1
        return key

    def done(self, key: Key) -> None:
        """End the processing of a key. If the key was added meanwhile, queue it again."""
        flow = key[0]
        self._active.discard(key)
        self._active_per_flow[flow] -= 1
        if not self._active_per_flow[flow]:
            del self._active_per_flow[flow]
        if key in self._dirty:
            self._make_ready(key)
        if flow in self._paused and flow not in self._pauses:
            self._resume(flow)

    @contextmanager
    def count_cpu_time(self, key: Key) -> Iterator[None]:
        """Pause the flow of a key if the block uses much CPU time. The block must not await."""
        start = self.cpu_clock()
        try:
            yield
        finally:
            if (seconds := self.cpu_clock() - start) > BUSY_SECONDS:
                self._pause(key[0], PAUSE_FACTOR * seconds)

    def _pause(self, flow: Any, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._paused.setdefault(flow, deque()).extend(self._flows.pop(flow, ()))
        start = loop.time()
        if earlier := self._pauses.get(flow):
            start = earlier.when()
            earlier.cancel()
        self._pauses[flow] = loop.call_at(start + seconds, self._resume, flow)

    def _resume(self, flow: Any) -> None:
        self._pauses.pop(flow, None)
        keys = self._paused[flow]
        for _ in range(min(len(keys), self._free_slots(flow))):
            self._serve(keys.popleft())
        if not keys:
            del self._paused[flow]

    def add_rate_limited(self, key: Key) -> float:
        """Requeue a key after a failure, and return the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(self.first_retry_seconds * 2.0 ** min(failures, 10), MAX_RETRY_SECONDS)
        self.add_after(key, delay)
        return delay

    def forget(self, key: Key) -> None:
        """Reset the backoff of a key after a success."""
        self._failures.pop(key, None)

    def drop(self, key: Key) -> None:
        """Cancel the backoff and the delayed requeue of a key whose object is gone."""
        self.forget(key)
        self._cancel_timer(key)

    def __len__(self) -> int:
        return sum(map(len, (*self._flows.values(), *self._paused.values())))

    def _make_ready(self, key: Key) -> None:
        flow = key[0]
        if flow in self._paused or self._free_slots(flow) <= 0:
            self._paused.setdefault(flow, deque()).append(key)
        else:
            self._serve(key)

    def _serve(self, key: Key) -> None:
        self._flows.setdefault(key[0], deque()).append(key)
        self._ready.release()

    def _free_slots(self, flow: Any) -> int:
        """Return how many more keys of a flow may be given to workers."""
        return self.max_active - self._active_per_flow[flow] - len(self._flows.get(flow, ()))

    def _cancel_timer(self, key: Key) -> None:
        if timer := self._timers.pop(key, None):
            timer.cancel()
