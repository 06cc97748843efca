"""The operator reads the driver's report through Ray's dashboard, over real HTTP."""

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
from batchinference_operator.controller.driver_client import MAX_BYTES, DashboardClient
from batchinference_operator.reconcile.observed_and_actions import DriverAnswer
from batchinference_operator.status.ray_job_view import DASHBOARD_PORT, RayJobView
from plugins.messages import Messages
from support.operator.objects import NAMESPACE, RUNNING, ray_job_body, report
from support.servers.ports import free_port
from support.servers.scripted_http import Serve, Server, answering

SEEN = RayJobView.of(ray_job_body(**RUNNING))
TOKEN = "a-token"
REPORT = report(JobState.RUNNING, rows=7)


class LoopbackDns(AbstractResolver):
    """A DNS that resolves every name to one port of the loopback interface."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.names: list[tuple[str, int]] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.names.append((host, port))
        return [ResolveResult(hostname=host, host="127.0.0.1", port=self.port, family=family,
                              proto=0, flags=socket.AI_NUMERICHOST)]  # fmt: skip

    async def close(self) -> None:
        pass


@asynccontextmanager
async def dashboard_at(
    port: int, timeout_seconds: float = 60.0
) -> AsyncIterator[tuple[DashboardClient, LoopbackDns]]:
    dns = LoopbackDns(port)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=dns)) as session:
        yield DashboardClient(session, timeout_seconds=timeout_seconds), dns


def is_unreachable(answer: DriverAnswer) -> bool:
    """Return whether the driver was not reached and the problem is one line without the token."""
    assert answer.report is None
    assert TOKEN not in answer.problem
    return not answer.reached and answer.problem != "" and "\n" not in answer.problem


async def poll(server: Server, seen: RayJobView = SEEN) -> DriverAnswer:
    async with dashboard_at(server.port) as (dashboard, _):
        return await dashboard.poll(NAMESPACE, seen, TOKEN)


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (401, "rejects the operator's token (401): the operator's token key was replaced"),
        (503, "answers 503"),
        (200, "returned an invalid report"),
    ],
)
async def test_problem_describes_the_error_of_the_dashboard(
    serve: Serve, status: int, problem: str
) -> None:
    answer = await poll(await serve(answering(status, "no")))
    assert answer.problem.startswith(f"job-1-head-svc:8265 {problem}")


async def test_head_without_the_file_is_reached_without_report(serve: Serve) -> None:
    server = await serve(answering(500, "File batchinference-report.json not found at /tmp/ray"))
    assert await poll(server) == DriverAnswer(reached=True)


async def test_report_is_read_from_the_head_service_with_the_token(serve: Serve) -> None:
    server = await serve(answering(200, REPORT.serialized()))
    async with dashboard_at(server.port) as (dashboard, resolver):
        answer = await dashboard.poll(NAMESPACE, SEEN, TOKEN)
    assert answer == DriverAnswer(reached=True, report=REPORT)
    assert resolver.names == [(f"job-1-head-svc.{NAMESPACE}.svc.cluster.local.", DASHBOARD_PORT)]
    (request,) = server.requests
    assert (request.method, request.path) == ("GET", "/api/v0/logs/file")
    assert request.query == {"node_ip": "10.0.0.7", "filename": REPORT_FILE, "lines": "-1"}
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"
    assert request.headers["Host"] == f"job-1-head-svc.{NAMESPACE}.svc.cluster.local:8265"


async def test_fields_that_no_reconcile_reads_take_no_memory(serve: Serve) -> None:
    notes = {"notes": ["x"] * 100, "versions": {"ray": "2"}, "seconds": {"running": 1.0}}
    server = await serve(answering(200, REPORT.model_copy(update=notes).serialized()))
    assert await poll(server) == DriverAnswer(reached=True, report=REPORT)


async def test_report_that_takes_long_to_parse_is_invalid(serve: Serve, messages: Messages) -> None:
    large = REPORT.model_copy(update={"notes": ["x"] * MAX_BYTES})
    answer = await poll(await serve(answering(200, large.serialized())))
    assert (answer.reached, answer.report) == (False, None)
    messages.check(answer.problem)


async def test_stop_request_names_the_submission(serve: Serve) -> None:
    server = await serve(answering(200, '{"stopped": true}'))
    async with dashboard_at(server.port) as (dashboard, _):
        await dashboard.stop(NAMESPACE, replace(SEEN, job_id="job-1-abcde"), TOKEN)
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/api/jobs/job-1-abcde/stop")
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"


async def test_failed_stop_request_is_not_an_error(serve: Serve) -> None:
    seen = replace(SEEN, job_id="job-1-abcde")
    server = await serve(answering(500, "no"))
    async with dashboard_at(server.port) as (dashboard, _):
        await dashboard.stop(NAMESPACE, seen, TOKEN)
        await dashboard.stop(NAMESPACE, replace(SEEN, job_id=""), TOKEN)
    assert len(server.requests) == 1
    async with dashboard_at(free_port()) as (dashboard, _):
        await dashboard.stop(NAMESPACE, seen, TOKEN)


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
async def test_invalid_answer_is_not_a_report(serve: Serve, status: int, body: Any) -> None:
    server = await serve(answering(status, body, "text/plain"))
    answer = await poll(server)
    assert is_unreachable(answer)
    assert answer.unauthorized == (status in (401, 403))


@pytest.mark.parametrize(
    "head",
    [
        {"podIP": "10.0.0.7"},
        {"serviceName": "svc"},
        {},
        None,
        {"podIP": "10.0.0.7", "serviceName": "victim.other.svc:80/path?"},
        {"podIP": "10.0.0.7", "serviceName": "a:9@"},
    ],
)
async def test_head_without_address_is_not_polled(serve: Serve, head: Any) -> None:
    server = await serve(answering(200, REPORT.serialized()))
    seen = RayJobView.of(ray_job_body(jobStatus="RUNNING", rayClusterStatus={"head": head}))
    assert is_unreachable(await poll(server, seen))
    assert server.requests == []


async def test_connection_error_is_not_an_answer() -> None:
    async with aiohttp.ClientSession() as session:
        seen = replace(SEEN, head_service="x" * 300)
        assert is_unreachable(await DashboardClient(session).poll(NAMESPACE, seen, TOKEN))
    async with dashboard_at(free_port()) as (dashboard, _):
        assert is_unreachable(await dashboard.poll(NAMESPACE, SEEN, TOKEN))


async def never(_: web.Request) -> web.Response:
    await asyncio.sleep(3600)
    return web.Response()


async def abort(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"name": "job"')
    assert request.transport is not None
    request.transport.abort()
    return response


@pytest.mark.parametrize(("handler", "seconds"), [(never, 0.1), (abort, 60.0)])
async def test_missing_or_aborted_answer_is_not_a_report(
    serve: Serve, handler: Any, seconds: float
) -> None:
    async with dashboard_at((await serve(handler)).port, seconds) as (dashboard, _):
        assert is_unreachable(await dashboard.poll(NAMESPACE, SEEN, TOKEN))


async def test_endless_answer_is_cut_off(serve: Serve) -> None:
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while sent < 1024 * MAX_BYTES:
            await response.write(b" " * (MAX_BYTES // 4))
            sent += MAX_BYTES // 4
        return response

    assert is_unreachable(await poll(await serve(flood)))
    assert sent < 512 * MAX_BYTES


async def test_redirect_is_not_followed(serve: Serve) -> None:
    elsewhere = await serve(answering(200, REPORT.serialized()))

    async def redirect(_: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": elsewhere.url})

    assert is_unreachable(await poll(await serve(redirect)))
    assert elsewhere.requests == []
