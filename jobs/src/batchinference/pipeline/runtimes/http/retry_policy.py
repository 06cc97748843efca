"""Retry policy of requests: the number of tries, what counts as a try, and the final error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import tenacity

from batchinference.pipeline.runtimes.http.errors import RateLimited, RequestFailed
from batchinference.pipeline.runtimes.http.failure_classifier import FailureClassifier
from batchinference.pipeline.runtimes.http.rate_limiter import RateLimiter
from batchinference.pipeline.storage import retry
from batchinference.pipeline.storage.retry import TryAgain

Answer = TypeVar("Answer")


class Retries:
    """Retries the requests of one replica. Its rows share a rate limiter and the state of the
    endpoint."""

    def __init__(self, retries: int, pace: RateLimiter) -> None:
        self._policy = replace(retry.HTTP, attempts=retries + 1)
        self._pace = pace
        self._health = FailureClassifier()

    async def ask(self, request: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the result of the request. Retries while it raises TryAgain and tries are left.

        Raises RequestFailed if the row cannot get a response, and ConnectionError if the endpoint
        is down.
        """
        began = _now()
        retrying = tenacity.AsyncRetrying(**self._policy.arguments())
        try:
            return await retrying(self._try, request)
        except TryAgain as error:
            raise self._health.verdict(error, began) from None

    async def _try(self, request: Callable[[], Awaitable[Answer]]) -> Answer:
        """Make one try. A rate-limited request does not count as a try while other rows get
        responses."""
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
