"""Adapts the number of concurrent requests to what an endpoint can answer at once."""

from __future__ import annotations

import asyncio
from collections import deque

FIRST = 16
"""The limit at the beginning."""
MIN_REJECTED = 3
"""The number of rejected requests in a round from which the endpoint is overloaded. Some endpoints
reject a few requests whatever their load is, such as with one bad server of twenty."""
PATIENCE, MAX_PATIENCE = 16, 256
"""Rounds before the limit grows above one that was too high, at first and at most."""


class ConcurrencyLimit:
    """A limit from 1 to `most` of requests in flight. Times are seconds of one clock.

    A round is as many answers as the limit, which doubles after each round. It is halved when the
    endpoint is overloaded, and then approaches the limit that was too high in halves of the
    distance. From there it grows by one, the more rarely the more often that fails.
    """

    def __init__(self, most: int) -> None:
        self.value = min(most, FIRST)
        self._most = self._ceiling = most
        self._doubles = True
        self._patience, self._patient = PATIENCE, 0
        self._answers = self._rejected = 0
        """The number of answers and of rejected requests of this round."""
        self._halved = float("-inf")
        """When the limit was last halved."""
        self._has_round = True
        """Whether a round has ended since then. Otherwise the endpoint answers nobody, which says
        nothing about the limit that it takes otherwise."""

    def record_answer(self, began: float) -> None:
        """Record the answer to a request that began at `began`."""
        if began <= self._halved:
            return
        self._answers += 1
        if self._answers >= self.value:
            self._answers = self._rejected = 0
            self._has_round = True
            self._grow()

    def record_overload(self, began: float, now: float, *, late: bool = False) -> None:
        """Record that the endpoint was overloaded when it got a request that began at `began`, or
        gave no answer in time (`late`). Requests from before the limit was halved say nothing about
        the new limit."""
        if began <= self._halved:
            return
        self._rejected += 1
        if self._rejected < min(self.value, MIN_REJECTED):
            return
        if self._has_round:
            if self.value > self._ceiling:
                self._patience = min(2 * self._patience, MAX_PATIENCE)
            # an endpoint that gets slower may compute late requests to their end, in vain
            self._ceiling = max(1, self.value // 2 if late else self.value - 1)
        self.value = max(1, self.value // 2)
        self._doubles = self._has_round = False
        self._patient, self._halved = 0, now
        self._answers = self._rejected = 0

    def _grow(self) -> None:
        if self.value > self._ceiling:
            self._ceiling, self._patience = self.value, max(1, min(self._patience, PATIENCE) // 2)
        if self.value < self._ceiling:
            step = self.value if self._doubles else (self._ceiling - self.value + 1) // 2
            self.value = min(self.value + step, self._ceiling)
            return
        self._patient += 1
        if self._patient >= self._patience:
            self.value, self._patient = min(self.value + 1, self._most), 0


class Slots:
    """Lets at most as many requests be in flight as the limit says, in the order in which they
    ask."""

    def __init__(self, limit: ConcurrencyLimit) -> None:
        self._limit = limit
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        self._taken -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._taken < self._limit.value:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._taken += 1
