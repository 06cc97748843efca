"""Sends HTTP requests to the API server, and reads the responses."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import aiohttp
import kopf

from batchinference_operator.kube.limited_json import read_json

MAX_RETRY_AFTER_SECONDS = 30.0
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
TIMEOUT_SECONDS = 30.0


async def send(
    session: kopf.AiohttpSession,
    method: str,
    path: str,
    body: Any = None,
    content_type: str = JSON,
    *,
    seconds: float = TIMEOUT_SECONDS,
) -> tuple[int, Any, float]:
    """Send a request. Return the status, the answer as data or text, and Retry-After in seconds, at
    most MAX_RETRY_AFTER_SECONDS. Raises aiohttp.ClientError, or TimeoutError after `seconds`."""
    response = await _call(session, method, path, seconds, body, content_type)
    content = await response.read()
    after = response.headers.get("Retry-After", "")
    retry_after = min(float(after), MAX_RETRY_AFTER_SECONDS) if after.isdecimal() else 0.0
    try:
        answer = await read_json(content)
    except ValueError:
        answer = content.decode(errors="replace").strip()
    return response.status, answer, retry_after


async def _call(
    session: kopf.AiohttpSession,
    method: str,
    path: str,
    seconds: float,
    body: Any = None,
    content_type: str = JSON,
) -> aiohttp.ClientResponse:
    return await session.aiohttp_session.request(
        method,
        f"{session.server}{path}",
        data=None if body is None else json.dumps(body),
        headers={"Accept": JSON, "Content-Type": content_type},
        timeout=aiohttp.ClientTimeout(total=seconds),
        allow_redirects=False,
    )


@asynccontextmanager
async def open_stream(
    session: kopf.AiohttpSession, path: str, seconds: float
) -> AsyncIterator[tuple[int, aiohttp.StreamReader]]:
    """Send a GET request. Yield the status and the body as a stream, for at most `seconds`."""
    response = await _call(session, "GET", path, seconds)
    try:
        yield response.status, response.content
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
    """Return whether an answer of the API server says that the object does not exist. The status
    404 is not enough, because the server also returns it for an unknown kind."""
    return is_error(status, answer, HTTPStatus.NOT_FOUND, "NotFound")
