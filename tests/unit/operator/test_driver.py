"""Asking a driver for its report through Ray's dashboard, over real HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from batchinference.spec.report import REPORT_FILE, JobState
from batchinference_operator.runtime import driver as driver_module
from batchinference_operator.runtime.driver import MAX_BYTES, Answer, Dashboard
from batchinference_operator.status.observations import DASHBOARD_PORT, RayJobView
from support.operator.objects import NAMESPACE, RUNNING, ray_job_body, report
from support.servers.scripted_http import Serve, Server, answering

SEEN = RayJobView.of(ray_job_body(**RUNNING))
TOKEN = "a-token"
REPORT = report(JobState.RUNNING, rows=7)


class ToServer(AbstractResolver):
    """A DNS in which every name is one port on the loopback."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.names: list[tuple[str, int]] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.names.append((host, port))
        flags = socket.AI_NUMERICHOST
        return [
            ResolveResult(
                hostname=host, host="127.0.0.1", port=self.port, family=family, proto=0, flags=flags
            )
        ]

    async def close(self) -> None:
        pass


@asynccontextmanager
async def dashboard_at(port: int) -> AsyncIterator[tuple[Dashboard, ToServer]]:
    resolver = ToServer(port)
    connector = aiohttp.TCPConnector(resolver=resolver)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Dashboard(session), resolver


async def asked(server: Server, seen: RayJobView = SEEN) -> Answer:
    async with dashboard_at(server.port) as (dashboard, _):
        return await dashboard.ask(NAMESPACE, seen, TOKEN)


async def test_a_report_is_read(serve: Serve) -> None:
    server = await serve(answering(200, REPORT.serialized(), "text/plain"))
    assert await asked(server) == Answer(reached=True, report=REPORT)


async def test_it_is_asked_for_with_the_token_at_the_heads_service(serve: Serve) -> None:
    server = await serve(answering(200, REPORT.serialized()))
    async with dashboard_at(server.port) as (dashboard, resolver):
        await dashboard.ask(NAMESPACE, SEEN, TOKEN)
    assert resolver.names == [(f"job-1-head-svc.{NAMESPACE}.svc", DASHBOARD_PORT)]
    (request,) = server.requests
    assert (request.method, request.path) == ("GET", "/api/v0/logs/file")
    assert request.query == {"node_ip": "10.0.0.7", "filename": REPORT_FILE, "lines": "-1"}
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"


async def test_a_driver_is_asked_to_stop_by_rays_name_of_its_run(serve: Serve) -> None:
    server = await serve(answering(200, '{"stopped": true}'))
    async with dashboard_at(server.port) as (dashboard, _):
        await dashboard.stop(NAMESPACE, replace(SEEN, job_id="job-1-abcde"), TOKEN)
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/api/jobs/job-1-abcde/stop")
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"


async def test_a_driver_that_cannot_be_asked_to_stop_is_no_error(serve: Serve) -> None:
    server = await serve(answering(500, "no"))
    async with dashboard_at(server.port) as (dashboard, _):
        await dashboard.stop(NAMESPACE, replace(SEEN, job_id="job-1-abcde"), TOKEN)
        await dashboard.stop(NAMESPACE, replace(SEEN, job_id=""), TOKEN)
    assert len(server.requests) == 1
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        async with dashboard_at(taken.getsockname()[1]) as (dashboard, _):
            await dashboard.stop(NAMESPACE, replace(SEEN, job_id="job-1-abcde"), TOKEN)


async def test_a_head_without_the_file_was_reached_but_has_no_report(serve: Serve) -> None:
    server = await serve(answering(500, "File batchinference-report.json not found at /tmp/ray"))
    assert await asked(server) == Answer(reached=True)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (401, "Unauthorized: Missing authentication token"),
        (403, "Forbidden"),
        (404, ""),
        (500, "Traceback (most recent call last): ..."),
        (502, "<html>Bad Gateway</html>"),
        (503, ""),
        (200, ""),
        (200, "not a report"),
        (200, "{}"),
        (200, '{"name": "job", "state": "dancing"}'),
        (200, "[1, 2]"),
        (200, b"\xff\xfe\x00 no text at all"),
        (204, ""),
    ],
)
async def test_any_other_answer_is_no_word_of_the_driver(
    serve: Serve, status: int, body: Any
) -> None:
    server = await serve(answering(status, body, "text/plain"))
    assert await asked(server) == Answer(reached=False)


@pytest.mark.parametrize("head", [{"podIP": "10.0.0.7"}, {"serviceName": "svc"}, {}, None])
async def test_a_head_that_has_no_address_yet_is_not_asked(serve: Serve, head: Any) -> None:
    server = await serve(answering(200, REPORT.serialized()))
    seen = RayJobView.of(ray_job_body(jobStatus="RUNNING", rayClusterStatus={"head": head}))
    assert await asked(server, seen) == Answer(reached=False)
    assert server.requests == []


async def test_a_name_that_no_dns_can_hold_is_no_error() -> None:
    async with aiohttp.ClientSession() as session:
        seen = replace(SEEN, head_service="x" * 300)
        assert await Dashboard(session).ask(NAMESPACE, seen, TOKEN) == Answer(reached=False)


async def test_a_refused_connection_is_no_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    async with dashboard_at(port) as (dashboard, _):
        assert await dashboard.ask(NAMESPACE, SEEN, TOKEN) == Answer(reached=False)


async def test_a_head_that_never_answers_is_given_up(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "TIMEOUT_SECONDS", 0.1)

    async def never(_: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        return web.Response()

    assert await asked(await serve(never)) == Answer(reached=False)


async def test_a_head_that_breaks_off_is_no_error(serve: Serve) -> None:
    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"name": "job"')
        assert request.transport is not None
        request.transport.abort()
        return response

    assert await asked(await serve(half)) == Answer(reached=False)


async def test_a_head_that_sends_without_end_is_cut_off(serve: Serve) -> None:
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while sent < 64 * MAX_BYTES:
            await response.write(b" " * (MAX_BYTES // 4))
            sent += MAX_BYTES // 4
        return response

    assert await asked(await serve(flood)) == Answer(reached=False)
    assert sent < 32 * MAX_BYTES


async def test_a_head_cannot_send_the_operator_elsewhere(serve: Serve) -> None:
    elsewhere = await serve(answering(200, REPORT.serialized()))

    async def redirect(_: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": elsewhere.url})

    assert await asked(await serve(redirect)) == Answer(reached=False)
    assert elsewhere.requests == []
