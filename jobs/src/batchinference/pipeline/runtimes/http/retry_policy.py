"""Asking again: how often, what counts as a try, and what it means when nothing helped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import tenacity

from batchinference.pipeline.runtimes.http.errors import RateLimited, RequestFailed
from batchinference.pipeline.runtimes.http.failure_classifier import FailureClassifier
from batchinference.pipeline.runtimes.http.rate_limiter import RateLimiter
from batchinference.pipeline.storage.http_retry import TryAgain, policy

Answer = TypeVar("Answer")


class Retries:
    """Asks on behalf of the rows of one replica, which share a pace and what is known of the
    endpoint."""

    def __init__(self, retries: int, pace: RateLimiter) -> None:
        self._tries = retries + 1
        self._pace = pace
        self._health = FailureClassifier()

    async def ask(self, request: Callable[[], Awaitable[Answer]]) -> Answer:
        """What the request returns, which is tried again for as long as it raises TryAgain.

        Raises RequestFailed where the row cannot have an answer, and ConnectionError where the
        endpoint is down.
        """
        began = _now()
        retrying = tenacity.AsyncRetrying(**policy(self._tries))
        try:
            return await retrying(self._try, request)
        except TryAgain as error:
            raise self._health.verdict(error, began) from None

    async def _try(self, request: Callable[[], Awaitable[Answer]]) -> Answer:
        """One try. To be told to wait is none while other rows get through."""
        while True:
            began = _now()
            try:
                answer = await request()
            except RateLimited as asked:
                self._pace.pause(asked.wait)
                if not self._health.answered_since(began):
                    raise
            except RequestFailed:
                self._health.answered(_now())
                raise
            else:
                self._health.answered(_now())
                return answer


def _now() -> float:
    return asyncio.get_running_loop().time()
