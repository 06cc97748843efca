"""When a request may begin."""

from __future__ import annotations

import asyncio


class RateLimiter:
    """Spaces the beginnings of requests evenly, and holds all of them back when told to."""

    def __init__(self, per_second: float | None) -> None:
        self._interval = 1 / per_second if per_second else 0.0
        self._next = 0.0
        self._paused_until = 0.0

    async def wait(self) -> None:
        """Returns when the next request may begin."""
        clock = asyncio.get_running_loop().time
        while True:
            now = clock()
            turn = max(self._next, now)
            self._next = turn + self._interval
            if turn > now:
                await asyncio.sleep(turn - now)
            if turn >= self._paused_until:
                return  # else a pause was asked for meanwhile

    def pause(self, seconds: float) -> None:
        """No request begins in the next `seconds`."""
        until = asyncio.get_running_loop().time() + seconds
        self._paused_until = max(self._paused_until, until)
        self._next = max(self._next, self._paused_until)
