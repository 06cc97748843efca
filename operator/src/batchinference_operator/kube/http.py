"""Sends HTTP requests to the API server, and limits their rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiClient
from kubernetes.aio.client.rest import RESTResponse

from batchinference.rendering import MANAGER
from batchinference.version import __version__
from batchinference_operator.kube.json_reader import read_json

QPS = 500.0
BURST = 1000


class RateLimiter:
    """A token bucket of size `burst` that gains `qps` tokens per second.

    Callers get tokens in the order of their calls. All methods must be called in one event loop.
    """

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
        now = asyncio.get_running_loop().time()
        self._next_token_at = max(self._next_token_at, now + seconds)


MAX_RETRY_AFTER_SECONDS = 30.0


def retry_after_seconds(retry_after: str) -> float:
    """Return the value of a Retry-After header in seconds, at most MAX_RETRY_AFTER_SECONDS."""
    return min(float(retry_after), MAX_RETRY_AFTER_SECONDS) if retry_after.isdecimal() else 0.0


JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
TIMEOUT_SECONDS = 30
OnRequest = Callable[[str, str, int | None, float], None]
"""Called after each request with method, path, status code (None without a response), seconds."""
USER_AGENT = f"{MANAGER}/{__version__}"
"""The user agent. It is in audit logs, and the API server derives the field manager from it."""


async def send(
    client: ApiClient,
    on_request: OnRequest,
    method: str,
    path: str,
    body: Any = None,
    content_type: str = JSON,
) -> tuple[int, Any, float]:
    """Send a request. Return the status, the answer as data or text, and Retry-After in seconds."""
    start, status = time.monotonic(), None
    try:
        response = await _call(client, method, path, body, content_type, TIMEOUT_SECONDS)
        content = await response.read()
        retry_after = retry_after_seconds(response.getheader("Retry-After") or "")
        try:
            answer = await read_json(content)
        except ValueError:
            answer = content.decode(errors="replace").strip()
        status = response.status
        return status, answer, retry_after
    finally:
        on_request(method, path, status, time.monotonic() - start)


async def _call(
    client: ApiClient, method: str, path: str, body: Any, content_type: str, seconds: float
) -> RESTResponse:
    request_headers = {"Accept": JSON, "Content-Type": content_type}
    # without the body, which is already plain data, because param_serialize would copy it slowly
    method, url, headers, *_ = await client.param_serialize(
        method, path, header_params=request_headers, auth_settings=["BearerToken"]
    )
    return await client.call_api(method, url, headers, body, _request_timeout=seconds)


@asynccontextmanager
async def open_stream(
    client: ApiClient, on_request: OnRequest, path: str, seconds: float
) -> AsyncIterator[tuple[int, aiohttp.StreamReader]]:
    """Send a GET request. Yield the status and the body as a stream, for at most `seconds`."""
    start, status = time.monotonic(), None
    try:
        response = (await _call(client, "GET", path, None, JSON, seconds)).response
        status = response.status
    finally:
        on_request("GET", path, status, time.monotonic() - start)
    try:
        yield status, response.content
    finally:
        response.close()


async def read_lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the complete lines of a stream without line breaks. Lines may have any length."""
    incomplete: list[bytes] = []
    async for chunk in stream.iter_any():
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            yield b"".join([*incomplete, line])
            incomplete = []
        incomplete.append(rest)


def is_error(status: int, answer: Any, expected: HTTPStatus, reason: str) -> bool:
    """Return whether an answer of the API server is the error with this status and reason."""
    return status == expected and isinstance(answer, dict) and answer.get("reason") == reason


def is_gone(status: int, answer: Any) -> bool:
    """Return whether an answer of the API server says that the object does not exist.

    The status 404 is not enough, because the server also returns it for an unknown kind.
    """
    return is_error(status, answer, HTTPStatus.NOT_FOUND, "NotFound")
