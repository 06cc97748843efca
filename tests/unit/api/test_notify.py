"""Notifications about a run on this machine, to servers that misbehave."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest
from aiohttp import web

from batchinference.api.notify import SendLimits, notify
from batchinference.pipeline.execution.stop_signals import StopSignal
from batchinference.spec import parse
from batchinference.spec.report import JobState, Report
from plugins.messages import Messages
from support.documents.minimal import document
from support.servers.scripted_http import Answer, Server, answering, serving

HOOK = {"name": "chat", "urlEnv": "HOOK"}
QUICK = SendLimits(first_wait=0.0)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


def ended(state: JobState = JobState.FAILED, reason: str | None = "TooManyErrors") -> Report:
    times = {"startedAt": "2026-03-01T12:00:00Z", "updatedAt": "2026-03-01T12:01:00Z"}
    fields: dict[str, Any] = {**times, "output": "out", "version": "1", "reason": reason}
    return Report(name="nightly", state=state, counts={"read": 3, "failed": 2}, **fields)


def said(
    report: Report,
    *hooks: dict[str, Any],
    stop: StopSignal | None = None,
    limits: SendLimits = QUICK,
) -> list[str]:
    lines: list[str] = []
    job = parse(document(notifications=list(hooks) or [HOOK]))
    notify(job, report, lines.append, stop or StopSignal(), limits)
    return lines


def sent(
    answer: Answer,
    monkeypatch: pytest.MonkeyPatch,
    report: Report | None = None,
    limits: SendLimits = QUICK,
) -> tuple[list[str], Server]:
    with serving(answer) as server:
        monkeypatch.setenv("HOOK", f"{server.url}/s3cret")
        return said(report or ended(), limits=limits), server


def test_run_sends_its_result(monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    lines, server = sent(answering(200, {}), monkeypatch)
    messages.check(lines)
    (request,) = server.requests
    assert request.body["type"] == "dev.batchinference.job.failed"
    assert request.body["data"]["failed"] == 2
    assert request.body["id"] == request.headers["Idempotency-Key"]


def test_transient_errors_are_repeated_with_the_same_id(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = iter([500, 429, 200])

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=next(statuses))

    _, server = sent(answer, monkeypatch)
    assert len(server.requests) == 3
    assert len({request.headers["Idempotency-Key"] for request in server.requests}) == 1


@pytest.mark.parametrize("status", [302, 404, 500])
def test_failing_endpoint_is_only_reported(
    status: int, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text="internal", headers={"Location": "/elsewhere"})

    lines, server = sent(answer, monkeypatch)
    messages.check(lines)
    assert len(server.requests) == (QUICK.tries if status == 500 else 1)


def test_silent_endpoint_ends(monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    async def answer(_: web.Request) -> web.Response:
        await asyncio.sleep(1)
        return web.Response()

    limits = SendLimits(tries=1, timeouts=(0.2, 0.2))
    messages.check(sent(answer, monkeypatch, limits=limits)[0])


def test_signal_ends_the_attempts(monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    stop, requests = StopSignal(), []

    async def answer(request: web.Request) -> web.Response:
        requests.append(request)
        stop.ask(signal.SIGINT)
        await asyncio.sleep(1)
        return web.Response()

    with serving(answer) as server:
        monkeypatch.setenv("HOOK", server.url)
        messages.check(said(ended(), HOOK, {**HOOK, "name": "mail"}, stop=stop))
    assert len(requests) == 1


def test_all_notifications_share_one_limit_of_time(
    monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.setenv("HOOK", "http://127.0.0.1:9/")
    hooks = HOOK, {**HOOK, "name": "mail"}
    messages.check(said(ended(), *hooks, limits=SendLimits(seconds=0.0)))


def test_unexpected_error_is_only_reported(
    monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.setenv("HOOK", "https://127.0.0.1:9/")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/absent.pem")
    messages.check(said(ended(), HOOK, {**HOOK, "name": "mail"}))


def test_interrupted_run_tries_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, server = sent(answering(503, {}), monkeypatch, ended(reason="Interrupted"))
    assert len(server.requests) == 1


def test_unusable_variables_are_named_without_their_values(
    monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.delenv("HOOK", raising=False)
    messages.check(said(ended()))
    for url, token in (("s3cret", "a"), ("http://s3cret:x/", "a"), ("http://127.0.0.1:9/", "a\nb")):
        monkeypatch.setenv("HOOK", url)
        monkeypatch.setenv("TOKEN", token)
        messages.check(said(ended(), {**HOOK, "apiKeyEnv": "TOKEN"}))


def test_other_results_send_nothing() -> None:
    assert said(ended(JobState.SUCCEEDED, None), {**HOOK, "when": "failed"}) == []
