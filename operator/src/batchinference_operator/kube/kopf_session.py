"""The session with which kopf lists and watches, so that no error or large object stops a watch.

The session logs kopf in to the API server and records responses. The session also retries refused
requests without end, limits the size of objects, and restarts a watch after any error.
"""

import itertools
import json
import logging
from collections.abc import AsyncIterator, Iterator
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Self

import aiohttp
import kopf
from aiohttp.connector import Connection
from pydantic_core import from_json

from batchinference_operator.kube.api_session import OnRequest, find_credentials, open_session
from batchinference_operator.kube.http import read_lines
from batchinference_operator.kube.limited_json import MAX_BYTES, read_json
from batchinference_operator.kube.watch_health import WatchHealth

MAX_TYPE_BYTES = 64
"""Number of bytes at the beginning of a watch event that contain its type."""
logger = logging.getLogger("batchinference.operator")


class LimitedResponse(aiohttp.ClientResponse):
    """A response without the fields that exceed the limits of `limited_json`."""

    async def start(self, connection: Connection) -> Self:
        """Read the head of the response, and limit the size of the objects in its stream."""
        await super().start(connection)
        self.content: Any = _LimitedStream(self.content)
        return self

    async def json(self, **options: Any) -> Any:
        """Return the body as data without the fields that exceed the limits."""
        try:
            return await read_json(await self.read())
        except ValueError:
            return await super().json(**options)  # raises the errors that kopf expects


class _LimitedStream:
    """The stream of a watch. Each chunk that kopf reads is the line of an event, without fields
    beyond the limits."""

    def __init__(self, stream: aiohttp.StreamReader) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        async for line in read_lines(self._stream):
            yield await _limit_line(_with_restart(line)) + b"\n"


def _with_restart(line: bytes) -> bytes:
    """Return an event of a watch. An error event gets the code 410 Gone.

    kopf starts the watch again only after 410. The API server also sends other errors, for
    instance to all watches when etcd has lost its leader for a moment.
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


BACKOFFS = (1.0, 2.0, 5.0, 10.0, 20.0)


class EndlessBackoffs:
    """The delays between kopf's retries of a request, without end. At the end of a finite sequence,
    kopf would stop the operator if one namespace is refused."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain(BACKOFFS, itertools.repeat(BACKOFFS[-1]))


class KopfLogin:
    """Logs kopf in with the credentials of the pod or a kubeconfig. Its requests and their
    responses are reported to `watches` and `on_request`."""

    def __init__(self, watches: WatchHealth, on_request: OnRequest) -> None:
        self._watches, self._on_request = watches, on_request
        # the same credentials get the same session, so that kopf knows when these were refused
        self._session = lru_cache(maxsize=1)(self._new_session)

    async def login(self, **options: Any) -> kopf.AiohttpSession | None:
        """Return a session with the current credentials; None if there are none."""
        info = find_credentials(**options)
        return None if info is None else self._session(info)

    def _new_session(self, info: kopf.ConnectionInfo) -> kopf.AiohttpSession:
        return open_session(info, self._record, response_class=LimitedResponse)

    def _record(self, method: str, path: str, status: int | None, seconds: float) -> None:
        """Report a request. Record which lists and watches the API server accepts or forbids."""
        self._on_request(method, path, status, seconds)
        collection, _, query = path.partition("?")
        if status is not None and status < HTTPStatus.BAD_REQUEST:
            self._watches.record_answer(collection, watch="watch=true" in query)
        elif status == HTTPStatus.FORBIDDEN:
            self._watches.record_refusal(collection, str(status))
