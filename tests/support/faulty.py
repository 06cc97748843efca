"""A proxy that spoils a server's answers, the same ones in every run."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from support.http_servers import Answer

FAULTS = ("slow down", "error", "hang", "cut", "cut in the middle", "malformed", "no JSON")
HANG_SECONDS = 30


@dataclass
class Faults:
    """Which tries go wrong, and how: a matter of the request and how often it came, not of chance,
    so that the order in which requests come changes nothing."""

    share: float
    in_a_row: int
    seed: int = 0
    met: Counter[str] = field(default_factory=Counter)
    _tries: Counter[bytes] = field(default_factory=Counter)

    def next(self, request: bytes) -> str | None:
        """What happens to this request, which comes once more; None for nothing."""
        self._tries[request] += 1
        count = self._tries[request]
        draw = random.Random(f"{self.seed} {_words_of(request)} {count}")
        if count > self.in_a_row or draw.random() >= self.share:
            return None
        fault = draw.choice(FAULTS)
        self.met[fault] += 1
        return fault


def _words_of(request: bytes) -> str:
    """All of it but the model, whose folder has another name in every run."""
    return str({name: said for name, said in json.loads(request).items() if name != "model"})


@dataclass
class Upstream:
    """A server whose answer to a request is asked for once and kept, so that only faults are slow
    from then on."""

    url: str
    _said: dict[tuple[str, bytes], tuple[int, bytes]] = field(default_factory=dict)

    async def ask(self, path: str, body: bytes) -> tuple[int, bytes]:
        if (path, body) not in self._said:
            self._said[path, body] = await _ask(self.url + path, body)
        return self._said[path, body]


def spoiling(upstream: Upstream, faults: Faults) -> Answer:
    """Passes requests on to a server, and spoils some."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        fault = faults.next(body)
        if fault in ("slow down", "error", "no JSON"):
            return _said_instead(fault)
        if fault == "hang":
            await asyncio.sleep(HANG_SECONDS)
        if fault == "cut":
            return _cut(request)
        status, content = await upstream.ask(request.path, body)
        if fault == "cut in the middle":
            return await _cut_in_the_middle(request, content)
        half = content[: len(content) // 2]
        said = half if fault == "malformed" else content
        return web.Response(status=status, body=said, content_type="application/json")

    return answer


def _said_instead(fault: str) -> web.Response:
    if fault == "slow down":
        return web.Response(status=429, headers={"Retry-After": "0.2"})
    if fault == "error":
        return web.Response(status=500, text="out of luck")
    return web.Response(text="<html>Bad day</html>", content_type="text/html")


async def _ask(url: str, body: bytes) -> tuple[int, bytes]:
    headers = {"Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=body, headers=headers) as response,
    ):
        return response.status, await response.read()


def _cut(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _cut_in_the_middle(request: web.Request, content: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": str(len(content))})
    await response.prepare(request)
    await response.write(content[: len(content) // 2])
    return _cut(request)
