"""Retries HTTP requests, limits their rate, and tells failed rows from a failed endpoint."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeVar

from batchinference.pipeline.storage import retry
from batchinference.pipeline.storage.retry import TransientError

DOWN_AFTER = 10
"""Number of consecutive failed rows at which BadAnswer means that the endpoint is down."""
CHANCE = 1e-6
"""A row fails if all its rejections happen by chance with a lower probability than this."""
Answer = TypeVar("Answer")
_NO_LIMIT: Any = nullcontext()


class RequestFailed(Exception):
    """The request of this row failed, but the endpoint answers other rows."""


class RequestInvalid(RequestFailed):
    """The endpoint says that the request of this row is invalid."""


class EndpointDown(ConnectionError):
    """The endpoint does not answer any row, and the retries are exhausted."""


class NoResponse(TransientError):
    """No response, or a response that says nothing about the row, such as one of a gateway."""


class Overloaded(NoResponse):
    """No response in time, or status 503 or 504 without a time to wait."""


class RequestTimeout(Overloaded):
    """No response in time."""


class BadAnswer(TransientError):
    """The endpoint returned an invalid response, such as status 500 or a body that is not JSON."""


class IncompleteAnswer(BadAnswer):
    """The endpoint answered, but says that it did not complete the answer."""


class RateLimited(TransientError):
    """The endpoint asked for fewer requests. `wait` is 0 if it named no time to wait."""


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


class Retries:
    """Retries the requests of one replica. All rows share the rate limiter, the slots for requests
    in flight, and the state of the endpoint. Times are event loop times, in seconds."""

    def __init__(
        self, retries: int, pace: RateLimiter, slots: AbstractAsyncContextManager[None] = _NO_LIMIT
    ) -> None:
        self._retries, self._pace, self._slots = retries, pace, slots
        self._last_answer = float("-inf")
        """The time at which the endpoint last answered a row, even if it rejected the row."""
        self._failed_rows = 0
        """The number of rows that failed since `_last_answer`."""
        self.answers = self._rejections = 0
        """The numbers of answered rows and of rate-limited requests."""

    async def ask(self, request: Callable[[], Awaitable[Answer]]) -> Answer:
        """Make a request when it is its turn, and return its result. Retries after a TransientError
        while attempts are left. Rate-limited requests count as attempts only while the endpoint
        answers no row. Raises RequestFailed if only this row fails, EndpointDown if the endpoint is
        down, and other errors of the request."""
        attempts, sent, rejections, rejected_attempts = 0, float("inf"), 0, 0
        before = self.answers, self._rejections
        while True:
            began = _now()
            try:
                async with self._slots:
                    await self._pace.wait()
                    sent = min(sent, _now())
                    return await self._recorded(request)
            except TransientError as error:
                if isinstance(error, RateLimited):
                    self._pace.pause(error.wait)
                    self._rejections += 1
                    rejections += 1
                    was_answered = self._last_answer >= began
                    rejected_attempts = 0 if was_answered else rejected_attempts + 1
                else:
                    attempts += 1
                if self._rejects_only_this_row(rejections, *before):
                    raise RequestFailed(f"{error} (and answered other rows)") from None
                tries = attempts + rejected_attempts
                if tries > self._retries or not retry.HTTP.transient(error):
                    raise self._final_error(error, sent) from None
                wait = max(error.wait, retry.HTTP.backoff(max(1, tries)))
            await asyncio.sleep(wait)

    async def _recorded(self, request: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the result of the request, and record the time if the endpoint has answered."""
        try:
            answer = await request()
        except (RequestFailed, IncompleteAnswer):
            self._last_answer, self._failed_rows = _now(), 0
            raise
        self._last_answer, self._failed_rows = _now(), 0
        self.answers += 1
        return answer

    def _rejects_only_this_row(self, rejections: int, answers: int, all_rejections: int) -> bool:
        """Return whether the endpoint rejects a row much more often than others, for example
        because it alone exceeds the rate limit. `rejections` is the number for this row. `answers`
        and `all_rejections` are the numbers for all rows before this row's first request."""
        if rejections <= self._retries:
            return False
        answered = self.answers - answers
        others = self._rejections - all_rejections - rejections
        by_chance: float = ((others + 1) / (others + answered + 1)) ** rejections
        return by_chance < CHANCE

    def _final_error(self, error: TransientError, sent: float) -> Exception:
        """Return the exception for a row whose retries are exhausted. `sent` is the time of its
        first attempt. RequestFailed fails only the row. EndpointDown ends the job, because a later
        attempt may find the endpoint healthy:

        - NoResponse: RequestFailed if the endpoint answered other rows since `sent`
        - BadAnswer: RequestFailed if fewer than DOWN_AFTER consecutive rows failed
        - RateLimited: EndpointDown, because `_rejects_only_this_row` was checked before"""
        self._failed_rows += 1
        if isinstance(error, BadAnswer):
            only_this_row = self._failed_rows < DOWN_AFTER
        else:
            only_this_row = not isinstance(error, RateLimited) and self._last_answer >= sent
        return RequestFailed(str(error)) if only_this_row else EndpointDown(str(error))


def _now() -> float:
    return asyncio.get_running_loop().time()
