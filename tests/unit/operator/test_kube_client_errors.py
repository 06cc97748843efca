"""The gateway when the API server is busy, returns errors or does not answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from batchinference_operator.kube import http
from batchinference_operator.kube.client import KubeClient
from batchinference_operator.kube.errors import Refused, Unreachable
from batchinference_operator.kube.http import RateLimiter
from plugins.messages import Messages
from support.operator.objects import NAMESPACE
from support.servers.scripted_http import Answer, Serve, Server

Connect = Callable[[Answer], Awaitable[tuple[KubeClient, Server]]]
BODY = {"kind": "ConfigMap", "metadata": {"name": "x", "namespace": NAMESPACE}}


@pytest.fixture
def unused_port() -> int:
    """Return a port on which no server listens."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
    return port


def at_first(problem: Callable[[web.Request], web.Response], times: int) -> Answer:
    """Return a server that fails the first `times` requests and then creates the object."""
    left = [times]

    async def answer(request: web.Request) -> web.StreamResponse:
        left[0] -= 1
        return web.json_response(BODY, status=201) if left[0] < 0 else problem(request)

    return answer


def status_code(code: int, **headers: str) -> Callable[[web.Request], web.Response]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: web.Response(status=code, text="busy", headers=names)


def disconnect(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


def text(_: web.Request) -> web.Response:
    return web.Response(status=200, text="busy")


@pytest.mark.parametrize(
    "problem",
    [*map(status_code, (429, 500, 502, 503, 504)), disconnect, text],
    ids=["429", "500", "502", "503", "504", "disconnect", "text"],
)
async def test_transient_errors_are_retried(connect: Connect, problem: Any) -> None:
    api, server = await connect(at_first(problem, times=2))
    assert await api.create(BODY) == BODY
    assert [request.body for request in server.requests] == [BODY] * 3


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (status_code(503), "503: busy"),
        (disconnect, "disconnected"),
        (text, "200: no JSON object: 'busy'"),
    ],
    ids=["503", "disconnect", "text"],
)
async def test_persistent_errors_are_raised_after_three_tries(
    connect: Connect, problem: Any, message: str
) -> None:
    api, server = await connect(at_first(problem, times=99))
    with pytest.raises(Unreachable, match=message):
        await api.create(BODY)
    assert len(server.requests) == 3


async def test_object_that_is_too_large_for_etcd_is_refused(
    connect: Connect, messages: Messages
) -> None:
    """The answer of the server looks like that of an outage, which is retried without an end."""
    message = "etcdserver: request is too large"
    body = {"kind": "Status", "reason": "", "code": 500, "message": message}
    api, _ = await connect(at_first(lambda _: web.json_response(body, status=500), times=99))
    with messages.raises(Refused) as refused:
        await api.create(BODY)
    assert not isinstance(refused.value, Unreachable)


@pytest.mark.usefixtures("no_pauses")
async def test_missing_server_is_unreachable(unused_port: int) -> None:
    configuration = Configuration(host=f"http://127.0.0.1:{unused_port}")
    async with ApiClient(configuration) as client:
        with pytest.raises(Unreachable, match="Cannot connect"):
            await KubeClient(client).create(BODY)


async def test_request_timeout_is_unreachable(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "TIMEOUT_SECONDS", 0.05)

    async def late(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    api, _ = await connect(late)
    with pytest.raises(Unreachable):
        await api.create(BODY)


@pytest.mark.parametrize("code", [400, 403, 422])
async def test_refusal_is_not_retried(connect: Connect, code: int) -> None:
    api, server = await connect(at_first(status_code(code), times=99))
    with pytest.raises(Refused) as refusal:
        await api.create(BODY)
    assert not isinstance(refusal.value, Unreachable)
    assert len(server.requests) == 1


@pytest.mark.usefixtures("no_pauses")
async def test_retry_after_pauses_all_requests(serve: Serve) -> None:
    pauses: list[float] = []

    class RecordedRate(RateLimiter):
        def pause(self, seconds: float) -> None:
            pauses.append(seconds)

    server = await serve(at_first(status_code(429, Retry_After="7"), times=1))
    async with ApiClient(Configuration(host=server.url)) as client:
        await KubeClient(client, rate=RecordedRate()).create(BODY)
    assert pauses == [7, 0]
