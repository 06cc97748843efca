"""How many requests the API server is sent."""

from __future__ import annotations

import asyncio

QPS = 500.0
BURST = 1000


class Rate:
    """A bucket of `burst` tokens into which `qps` fall each second. Who waits is served in turn.

    It suffices to know when the next token is due. All methods must be called in one event loop.
    """

    def __init__(self, qps: float = QPS, burst: int = BURST) -> None:
        self._gap = 1 / qps
        self._slack = burst / qps
        self._due = float("-inf")

    async def turn(self) -> None:
        """Wait for a token, and take it."""
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now - self._slack) + self._gap
        if self._due > now:
            await asyncio.sleep(self._due - now)

    def pause(self, seconds: float) -> None:
        """Give no token for a while: the server has asked for it."""
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now + seconds)
