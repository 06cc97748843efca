"""Limits the rate of requests."""

from __future__ import annotations

import asyncio


class RateLimiter:
    """Spaces the starts of requests evenly, and can pause all requests."""

    def __init__(self, per_second: float | None) -> None:
        self._interval = 1 / per_second if per_second else 0.0
        self._next = 0.0
        self._paused_until = 0.0

    async def wait(self) -> None:
        """Wait until the next request may start."""
        clock = asyncio.get_running_loop().time
        while True:
            now = clock()
            turn = max(self._next, now)
            self._next = turn + self._interval
            if turn > now:
                await asyncio.sleep(turn - now)
            if turn >= self._paused_until:
                return  # otherwise pause() was called during the sleep

    def pause(self, seconds: float) -> None:
        """Start no request in the next `seconds`."""
        until = asyncio.get_running_loop().time() + seconds
        self._paused_until = max(self._paused_until, until)
        self._next = max(self._next, self._paused_until)
