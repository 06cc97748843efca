"""A proxy that corrupts some answers of a server. Each run has the same faults."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from support.servers.scripted_http import Answer

FAULTS = ("slow down", "error", "hang", "cut", "cut in the middle", "malformed", "no JSON")
HANG_SECONDS = 30


@dataclass
class Faults:
    """Chooses the faults. A fault depends only on the request and the number of its pass, so the
    order of requests does not matter."""

    share: float
    in_a_row: int
    seed: int = 0
    met: Counter[str] = field(default_factory=Counter)
    _tries: Counter[bytes] = field(default_factory=Counter)

    def next(self, request: bytes) -> str | None:
        """Return the fault of this pass of a request, or None."""
        self._tries[request] += 1
        count = self._tries[request]
        draw = random.Random(f"{self.seed} {_without_model(request)} {count}")
        if count > self.in_a_row or draw.random() >= self.share:
            return None
        fault = draw.choice(FAULTS)
        self.met[fault] += 1
        return fault


def _without_model(request: bytes) -> str:
    """Return the request without the model, whose folder differs in each run."""
    return str({name: value for name, value in json.loads(request).items() if name != "model"})


@dataclass
class Upstream:
    """A server whose answers are cached, so that repeated requests are fast."""

    url: str
    _answers: dict[tuple[str, bytes], tuple[int, bytes]] = field(default_factory=dict)

    async def ask(self, path: str, body: bytes) -> tuple[int, bytes]:
        if (path, body) not in self._answers:
            self._answers[path, body] = await _ask(self.url + path, body)
        return self._answers[path, body]


def corrupting(upstream: Upstream, faults: Faults) -> Answer:
    """Forward requests to a server, and corrupt some answers."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        fault = faults.next(body)
        if fault in ("slow down", "error", "no JSON"):
            return _fault_answer(fault)
        if fault == "hang":
            await asyncio.sleep(HANG_SECONDS)
        if fault == "cut":
            return _cut(request)
        status, content = await upstream.ask(request.path, body)
        if fault == "cut in the middle":
            return await _cut_in_the_middle(request, content)
        half = content[: len(content) // 2]
        sent = half if fault == "malformed" else content
        return web.Response(status=status, body=sent, content_type="application/json")

    return answer


def _fault_answer(fault: str) -> web.Response:
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
