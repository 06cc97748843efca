"""Retries of requests to the API server.

All requests are idempotent: an object that already exists or is already gone is not an error.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from batchinference_operator.kube.api import Unreachable

RETRY_DELAYS = (0.2, 0.8)
"""Seconds before each retry of a request. After the last retry, the work queue retries the job."""
MAX_RETRY_AFTER_SECONDS = 30.0
TRANSIENT = {429, 500, 502, 503, 504}
"""Status codes of transient errors."""


async def with_retries(send: Callable[[], Awaitable[tuple[int, Any]]]) -> tuple[int, Any]:
    """Send a request with retries. Return the status and the answer of the last try."""
    for pause in RETRY_DELAYS:
        with contextlib.suppress(Unreachable):
            status, answer = await send()
            if status not in TRANSIENT:
                return status, answer
        await asyncio.sleep(pause)
    return await send()


def retry_after_seconds(retry_after: str) -> float:
    """Return the value of a Retry-After header in seconds, at most MAX_RETRY_AFTER_SECONDS."""
    return min(float(retry_after), MAX_RETRY_AFTER_SECONDS) if retry_after.isdecimal() else 0.0
