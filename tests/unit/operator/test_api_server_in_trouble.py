"""The gateway when the API server is busy, errs or does not answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from batchinference_operator.runtime import api_server as module
from batchinference_operator.runtime import exchange
from batchinference_operator.runtime.api_server import ApiServer
from batchinference_operator.runtime.gateway import Refused, Unreachable
from batchinference_operator.runtime.rate import Rate
from support.operator.objects import NAMESPACE
from support.servers.scripted_http import Answer, Serve, Server

BODY = {"kind": "ConfigMap", "metadata": {"name": "x", "namespace": NAMESPACE}}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSES", (0.0, 0.0))


@pytest.fixture
def free() -> int:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
    return port


@asynccontextmanager
async def gateway_to(server: Server) -> AsyncIterator[ApiServer]:
    async with ApiClient(Configuration(host=server.url)) as client:
        yield ApiServer(client)


def at_first(trouble: Callable[[web.Request], web.Response], times: int) -> Answer:
    """A server that is in trouble so many times, and then has created what it was asked to."""
    left = [times]

    async def answer(request: web.Request) -> web.StreamResponse:
        left[0] -= 1
        return web.json_response(BODY, status=201) if left[0] < 0 else trouble(request)

    return answer


def failing(code: int, **headers: str) -> Callable[[web.Request], web.Response]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: web.Response(status=code, text="busy", headers=names)


def hanging_up(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
async def test_transient_status_codes_are_retried(serve: Serve, code: int) -> None:
    server = await serve(at_first(failing(code), times=2))
    async with gateway_to(server) as gateway:
        assert await gateway.create(BODY) == BODY
    assert [request.body for request in server.requests] == [BODY] * 3


async def test_a_lost_connection_is_tried_again(serve: Serve) -> None:
    async with gateway_to(await serve(at_first(hanging_up, times=2))) as gateway:
        assert await gateway.create(BODY) == BODY


async def test_persistent_errors_are_raised_after_three_tries(serve: Serve) -> None:
    server = await serve(at_first(failing(503), times=99))
    async with gateway_to(server) as gateway:
        with pytest.raises(Unreachable, match="503: busy"):
            await gateway.create(BODY)
    assert len(server.requests) == 3
    async with gateway_to(await serve(at_first(hanging_up, times=99))) as gateway:
        with pytest.raises(Unreachable, match="disconnected"):
            await gateway.create(BODY)


async def test_a_server_that_is_not_there_is_unreachable(free: int) -> None:
    configuration = Configuration(host=f"http://127.0.0.1:{free}")
    async with ApiClient(configuration) as client:
        with pytest.raises(Unreachable, match="Cannot connect"):
            await ApiServer(client).create(BODY)


async def test_a_server_that_does_not_answer_in_time_is_unreachable(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "TIMEOUT_SECONDS", 0.05)

    async def late(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    async with gateway_to(await serve(late)) as gateway:
        with pytest.raises(Unreachable):
            await gateway.create(BODY)


@pytest.mark.parametrize("code", [400, 403, 422])
async def test_a_refusal_is_not_tried_again(serve: Serve, code: int) -> None:
    server = await serve(at_first(failing(code), times=99))
    async with gateway_to(server) as gateway:
        with pytest.raises(Refused) as refusal:
            await gateway.create(BODY)
    assert not isinstance(refusal.value, Unreachable)
    assert len(server.requests) == 1


async def test_retry_after_pauses_all_requests(serve: Serve) -> None:
    pauses: list[float] = []

    class RecordedRate(Rate):
        def pause(self, seconds: float) -> None:
            pauses.append(seconds)

    server = await serve(at_first(failing(429, Retry_After="7"), times=1))
    async with ApiClient(Configuration(host=server.url)) as client:
        await ApiServer(client, rate=RecordedRate()).create(BODY)
    assert pauses == [7, 0]
