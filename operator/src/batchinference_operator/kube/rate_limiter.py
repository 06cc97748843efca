"""Limits the rate of requests to the API server."""

import asyncio

QPS = 500.0
BURST = 1000


class RateLimiter:
    """A token bucket of size `burst` that gains `qps` tokens per second. Callers get tokens in the
    order of their calls. All methods must be called in one event loop."""

    def __init__(self, qps: float = QPS, burst: int = BURST) -> None:
        self._interval = 1 / qps
        self._burst_seconds = burst / qps
        self._next_token_at = float("-inf")

    async def wait(self) -> None:
        """Wait for a token and take it."""
        now = asyncio.get_running_loop().time()
        self._next_token_at = max(self._next_token_at, now - self._burst_seconds) + self._interval
        if self._next_token_at > now:
            await asyncio.sleep(self._next_token_at - now)

    def pause(self, seconds: float) -> None:
        """Give no token for this number of seconds, because the server has sent Retry-After."""
        if seconds:
            now = asyncio.get_running_loop().time()
            self._next_token_at = max(self._next_token_at, now + seconds)
