"""The response class of kopf's session. It reads JSON with the limits of `json_reader`."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, Self

import aiohttp
from aiohttp.connector import Connection
from pydantic_core import from_json

from batchinference_operator.kube.http import read_lines
from batchinference_operator.kube.json_reader import MAX_BYTES, read_json

MAX_TYPE_BYTES = 64
"""The type of an event is in its first bytes."""
logger = logging.getLogger("batchinference.operator")


class LimitedResponse(aiohttp.ClientResponse):
    """A response without the fields that exceed the limits."""

    async def start(self, connection: Connection) -> Self:
        await super().start(connection)
        self.content: Any = _LimitedStream(self.content)
        return self

    async def json(self, **options: Any) -> Any:
        try:
            return await read_json(await self.read())
        except ValueError:
            return await super().json(**options)  # raises the errors that kopf expects


class _LimitedStream:
    """A stream that yields each line of a watch as a chunk, without fields beyond the limits.

    kopf reads watches in chunks.
    """

    def __init__(self, stream: aiohttp.StreamReader) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        async for line in read_lines(self._stream):
            yield await _limit_line(_with_restart(line)) + b"\n"


def _with_restart(line: bytes) -> bytes:
    """Return an event of a watch. An error becomes the one after which kopf watches again.

    kopf ends for any other error, such as those that the API server sends to all watches if etcd
    has lost its leader for a moment.
    """
    if b'"ERROR"' not in line[:MAX_TYPE_BYTES]:
        return line
    status = json.loads(line)["object"]
    if status.get("code") != HTTPStatus.GONE:
        logger.warning("a watch ended with an error, and starts again: %s", status.get("message"))
    return json.dumps({"type": "ERROR", "object": {**status, "code": HTTPStatus.GONE}}).encode()


async def _limit_line(line: bytes) -> bytes:
    """Return a line without fields beyond the limits. Most lines do not change."""
    try:
        if len(line) <= MAX_BYTES:
            from_json(line or b"null")
            return line
    except ValueError:
        pass
    return json.dumps(await read_json(line)).encode()
