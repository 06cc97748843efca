"""Adapts the number of concurrent requests to the capacity of an endpoint."""

import asyncio
from collections import deque

FIRST = 16
"""The initial limit, in requests."""
MIN_REJECTED = 3
"""Number of rejected requests in a round that count as overload. An endpoint may reject fewer
requests at any load, for example if one of its twenty servers is defective."""
PATIENCE, MAX_PATIENCE = 16, 256
"""Number of rounds at the ceiling before the limit exceeds it: at first, and at most."""


class ConcurrencyLimit:
    """The allowed number of requests in flight, from 1 to `maximum`. Times are seconds of a clock.

    A round ends when as many requests are answered as the limit allows. At first, each round
    doubles the limit. An overload halves the limit, and sets the ceiling just below the old limit,
    or to its half if answers are late. Each round then halves the distance to the ceiling. At the
    ceiling, the limit grows by one after `_patience` rounds. `_patience` doubles if that causes an
    overload, else it falls. Example: 16, 32, 64 (ceiling 63), 32, 48, 56, 60, 62, 63."""

    def __init__(self, maximum: int) -> None:
        self.value = min(maximum, FIRST)
        self._maximum = self._ceiling = maximum
        self._doubles = True
        self._patience, self._rounds_at_ceiling = PATIENCE, 0
        self._answers = self._rejected = 0
        """The number of answers and of rejected requests of this round."""
        self._halved = float("-inf")
        """When the limit was last halved."""
        self._has_round = True
        """Whether a round has ended since the limit was last halved. If not, the endpoint may be
        down, and another overload does not mean that the limit is too high."""

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
        """Record that the endpoint rejected a request that began at `began`, or did not answer it
        in time (`late`). Requests that began before the limit was last halved are ignored."""
        if began <= self._halved:
            return
        self._rejected += 1
        if self._rejected < min(self.value, MIN_REJECTED):
            return
        if self._has_round:
            if self.value > self._ceiling:
                self._patience = min(2 * self._patience, MAX_PATIENCE)
            # if answers are late, the endpoint may still compute requests that have timed out
            self._ceiling = max(1, self.value // 2 if late else self.value - 1)
        self.value = max(1, self.value // 2)
        self._doubles = self._has_round = False
        self._rounds_at_ceiling, self._halved = 0, now
        self._answers = self._rejected = 0

    def _grow(self) -> None:
        if self.value > self._ceiling:
            self._ceiling, self._patience = self.value, max(1, min(self._patience, PATIENCE) // 2)
        if self.value < self._ceiling:
            step = self.value if self._doubles else (self._ceiling - self.value + 1) // 2
            self.value = min(self.value + step, self._ceiling)
            return
        self._rounds_at_ceiling += 1
        if self._rounds_at_ceiling >= self._patience:
            self.value, self._rounds_at_ceiling = min(self.value + 1, self._maximum), 0


class Slots:
    """Admits requests, in their order, while fewer are in flight than the limit allows."""

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
