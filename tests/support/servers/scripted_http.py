"""HTTP servers on loopback whose answers a test scripts."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Request:
    """A request that a server received."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class Server:
    """A server that records requests and gives scripted answers."""

    answer: Answer
    port: int = 0
    requests: list[Request] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        content = await request.text()
        self.requests.append(
            Request(
                request.method,
                request.path,
                dict(request.query),
                dict(request.headers),
                json.loads(content) if content else None,
            )
        )
        return await self.answer(request)


Serve = Callable[[Answer], Awaitable[Server]]
"""Starts a server."""


@asynccontextmanager
async def served(answer: Answer) -> AsyncIterator[Server]:
    server = Server(answer)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    async with TestServer(application, host="127.0.0.1") as running:
        server.port = running.port or 0
        yield server


@contextmanager
def serving(answer: Answer) -> Iterator[Server]:
    """Run a server in its own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    opened = served(answer)
    try:
        yield asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop).result()
        asyncio.run_coroutine_threadsafe(opened.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def answering(status: int, body: Any, content_type: str = "application/json") -> Answer:
    """Return a script that always gives the same answer: a body as text, or to send as JSON."""
    content = body if isinstance(body, str | bytes) else json.dumps(body)
    raw = content.encode() if isinstance(content, str) else content

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=raw, content_type=content_type)

    return answer
