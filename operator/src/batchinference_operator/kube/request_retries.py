"""Sends requests to the API server, and retries those that fail for a moment."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import aiohttp
import kopf

from batchinference_operator.kube.api_errors import TRANSIENT, Unreachable
from batchinference_operator.kube.http import TIMEOUT_SECONDS, send
from batchinference_operator.kube.rate_limiter import RateLimiter

MAX_ERROR_CHARS = 200
"""Maximum characters of an answer in a message."""
RETRY_DELAYS = (0.2, 0.8)
"""Seconds before each retry of a request. After the last, the work queue reconciles the job later.
All requests can be repeated: an object that already exists, or is already gone, is not an error."""


@dataclass(eq=False)
class RetryingClient:
    """Sends requests at a limited rate. After the last retry, raises Unreachable if the server does
    not respond."""

    session: kopf.AiohttpSession
    rate: RateLimiter = field(default_factory=RateLimiter)
    timeout_seconds: float = TIMEOUT_SECONDS
    retry_delays: Sequence[float] = RETRY_DELAYS

    async def _request(self, *call: Any) -> tuple[int, Any]:
        """Send a request with retries. Return the status and the answer of the last try."""
        for pause in self.retry_delays:
            with suppress(Unreachable):
                status, answer = await self._send(*call)
                if status not in TRANSIENT:
                    return status, answer
            await asyncio.sleep(pause)
        return await self._send(*call)

    async def _send(self, *call: Any) -> tuple[int, Any]:
        await self.rate.wait()
        try:
            status, answer, retry_after = await send(
                self.session, *call, seconds=self.timeout_seconds
            )
        except (OSError, aiohttp.ClientError) as problem:
            raise Unreachable(str(problem) or "no answer") from problem
        self.rate.pause(retry_after)
        if status < HTTPStatus.BAD_REQUEST and not isinstance(answer, dict):
            raise Unreachable(f"{status}: no JSON object: {str(answer)[:MAX_ERROR_CHARS]!r}")
        return status, answer
