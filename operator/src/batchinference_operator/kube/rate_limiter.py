"""The rate limit of requests to the API server."""

from __future__ import annotations

import asyncio

QPS = 500.0
BURST = 1000


class RateLimiter:
    """A token bucket of size `burst` that gains `qps` tokens per second.

    Waiting callers are served in order. The only state is the time at which the next token is due.
    All methods must be called in one event loop.
    """

    def __init__(self, qps: float = QPS, burst: int = BURST) -> None:
        self._gap = 1 / qps
        self._slack = burst / qps
        self._due = float("-inf")

    async def wait(self) -> None:
        """Wait for a token and take it."""
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now - self._slack) + self._gap
        if self._due > now:
            await asyncio.sleep(self._due - now)

    def pause(self, seconds: float) -> None:
        """Give no token for some seconds, because the server asked for it."""
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now + seconds)
