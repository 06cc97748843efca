"""Retries of requests to the API server.

Every request can be repeated safely: an object that already exists or is already gone is not an
error.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from batchinference_operator.kube.api import Unreachable

RETRY_DELAYS = (0.2, 0.8)
"""Seconds before each retry of a request. After the last retry, the work queue retries the job."""
MAX_BUSY_SECONDS = 30.0
TRANSIENT = {429, 500, 502, 503, 504}
"""Status codes of transient errors, which a retry may resolve."""


async def with_retries(send: Callable[[], Awaitable[tuple[int, Any]]]) -> tuple[int, Any]:
    """Send a request, with retries, and return the status and the answer."""
    for pause in RETRY_DELAYS:
        with contextlib.suppress(Unreachable):
            status, answer = await send()
            if status not in TRANSIENT:
                return status, answer
        await asyncio.sleep(pause)
    return await send()


def busy_seconds(retry_after: str) -> float:
    """Return the wait in seconds that an overloaded server requests, at most MAX_BUSY_SECONDS."""
    return min(float(retry_after), MAX_BUSY_SECONDS) if retry_after.isdecimal() else 0.0
