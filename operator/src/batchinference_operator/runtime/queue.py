"""A queue of keys to look at.

Keys wait in lanes that have their turns: of two lanes in which a key waits, neither hands out two
while the other hands out none, however long it is. A key is in the queue once, however often it is
added, and is never handed out twice at a time: a key that is added while somebody works on it is
handed out again afterwards. Watches may lose or repeat events, so keys also come back by themselves
after a delay.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

FIRST_RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 60.0


class KeyedQueue(Generic[Key]):
    """Keys that wait to be looked at, all in one lane by default. All methods must be called in
    one event loop."""

    def __init__(self, lane: Callable[[Key], Hashable] = lambda _: None) -> None:
        self._lane = lane
        self._lanes: dict[Hashable, deque[Key]] = {}
        """Those in which a key waits, the next one first."""
        self._dirty: set[Key] = set()
        self._active: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._ready = asyncio.Semaphore(0)

    def add(self, key: Key) -> None:
        """Have a key looked at as soon as may be."""
        self._cancel_timer(key)
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._active:
            self._hand_out(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Have a key looked at after a delay, unless it is sooner anyway."""
        if key in self._dirty:
            return
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= loop.time() + seconds:
            return
        self._cancel_timer(key)
        self._timers[key] = loop.call_later(seconds, self.add, key)

    def is_due(self, key: Key) -> bool:
        """Whether a key is to be looked at as soon as may be."""
        return key in self._dirty

    async def get(self) -> Key:
        """The next key. `done` must be called for it afterwards."""
        await self._ready.acquire()
        lane, keys = next(iter(self._lanes.items()))
        key = keys.popleft()
        del self._lanes[lane]
        if keys:
            self._lanes[lane] = keys  # behind the others
        self._dirty.discard(key)
        self._active.add(key)
        return key

    def done(self, key: Key) -> None:
        self._active.discard(key)
        if key in self._dirty:
            self._hand_out(key)

    def retry(self, key: Key) -> float:
        """Have a key looked at again after a failure; each one doubles the delay, in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(FIRST_RETRY_SECONDS * 2.0 ** min(failures, 10), MAX_RETRY_SECONDS)
        self.add_after(key, delay)
        return delay

    def forgive(self, key: Key) -> None:
        """A look went well: the next failure begins with the shortest delay."""
        self._failures.pop(key, None)

    def forget(self, key: Key) -> None:
        """A key that is gone for good."""
        self.forgive(key)
        self._cancel_timer(key)

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def _hand_out(self, key: Key) -> None:
        self._lanes.setdefault(self._lane(key), deque()).append(key)
        self._ready.release()

    def _cancel_timer(self, key: Key) -> None:
        if timer := self._timers.pop(key, None):
            timer.cancel()
