"""Who is to blame when the endpoint does not answer: the row, the endpoint, or the job's file."""

from __future__ import annotations

import asyncio
import email.utils
import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from batchinference.pipeline.endpoint import RequestFailed
from batchinference.pipeline.failures import JobFailure
from batchinference.pipeline.isolation import is_about_the_row
from support.apiserver import free_port
from support.endpoints import ask, chat
from support.http_servers import Answer, served

QUICK = {"retries": 1, "prompt": "{question}"}


def failing(fail: Callable[[str, int], web.Response | None]) -> Answer:
    """Repeats what it is told, unless `fail` has another answer to a text and its n-th try."""
    tries: Counter[str] = Counter()

    async def answer(request: web.Request) -> web.Response:
        text = json.loads(await request.text())["messages"][0]["content"]
        tries[text] += 1
        good = web.json_response({"choices": [{"message": {"content": text}}]})
        return fail(text, tries[text]) or good

    return answer


def always(status: int, text: str = "", **headers: str) -> Answer:
    return failing(lambda *_: web.Response(status=status, text=text, headers=headers))


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
async def test_what_may_pass_is_tried_again(status: int) -> None:
    first = failing(lambda _, count: web.Response(status=status) if count == 1 else None)
    async with served(first) as server:
        assert await ask(chat(url=server.url, **QUICK), question=["a"]) == ["a"]
    assert len(server.requests) == 2


@pytest.mark.parametrize("status", [400, 403, 413, 422])
async def test_what_the_endpoint_says_of_a_row_is_the_rows_error(status: int) -> None:
    said = failing(lambda text, _: web.Response(status=status, text="no") if text == "b" else None)
    async with served(said) as server:
        answers = await ask(chat(url=server.url), question=["a", "b", "c"])
    assert [answers[0], answers[2]] == ["a", "c"]
    assert isinstance(answers[1], RequestFailed)
    assert is_about_the_row(answers[1])
    assert str(answers[1]) == f"the endpoint answered {status}: no"
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [301, 307, 401, 404, 405])
async def test_what_would_be_said_of_every_row_ends_the_job_at_once(status: int) -> None:
    elsewhere = always(status, "not here", Location="/other")
    async with served(elsewhere) as server:
        with pytest.raises(JobFailure, match=f"the endpoint answered {status}: not here .http"):
            await ask(chat(url=server.url), question=["a"])
    assert len(server.requests) == 1


async def test_an_error_that_stays_with_one_row_is_the_rows() -> None:
    one = failing(lambda text, _: web.Response(status=500, text="oh") if text == "b" else None)
    async with served(one) as server:
        answers = await ask(chat(url=server.url, **QUICK), question=["a", "b", "c"])
        (alone,) = await ask(chat(url=server.url, **QUICK), question=["b"])
    assert [str(answer) for answer in answers] == ["a", "the endpoint answered 500: oh", "c"]
    assert isinstance(alone, RequestFailed), "it is the row's though no other is there to compare"


@pytest.mark.parametrize("how", ["hang", "cut"])
async def test_a_row_that_is_never_answered_is_to_blame_when_others_are(how: str) -> None:
    async with served(never_answering(b"bad", how)) as server:
        model = chat(url=server.url, **QUICK, timeoutSeconds=0.5)
        answers = await ask(model, question=["a", "bad", "c"])
    assert [answers[0], answers[2]] == ["a", "c"]
    assert isinstance(answers[1], RequestFailed)


@pytest.mark.parametrize("how", ["hang", "cut"])
async def test_an_endpoint_that_never_answers_ends_the_job(how: str) -> None:
    async with served(never_answering(b"a", how)) as server:
        model = chat(url=server.url, **QUICK, timeoutSeconds=0.5)
        words = "no answer within 0.5 seconds" if how == "hang" else "cannot be reached: Server"
        with pytest.raises(ConnectionError, match=words):
            await ask(model, question=["a"])
    assert len(server.requests) == 2


def never_answering(text: bytes, how: str) -> Answer:
    """To requests that hold the text."""
    good = failing(lambda *_: None)

    async def answer(request: web.Request) -> web.StreamResponse:
        if b'"content": "' + text in await request.read():
            if how == "hang":
                await asyncio.sleep(5)
            assert request.transport is not None
            request.transport.abort()
        return await good(request)

    return answer


@pytest.mark.parametrize("status", [429, 502, 503])
async def test_an_endpoint_that_is_down_for_all_rows_ends_the_job(status: int) -> None:
    async with served(always(status, "later")) as server:
        with pytest.raises(
            ConnectionError, match=f"the endpoint answered {status}: later"
        ) as caught:
            await ask(chat(url=server.url, **QUICK), question=["a", "b", "c"])
    assert not is_about_the_row(caught.value)


async def test_an_endpoint_that_fails_on_every_row_ends_the_job() -> None:
    async with served(always(500, "broken")) as server:
        with pytest.raises(ConnectionError, match="the endpoint answered 500: broken"):
            await ask(chat(url=server.url, **QUICK), question=[f"row {n}" for n in range(12)])


async def test_an_endpoint_that_nobody_listens_at_ends_the_job() -> None:
    model = chat(url=f"http://127.0.0.1:{free_port()}", **QUICK)
    with pytest.raises(ConnectionError, match="cannot be reached: ClientConnectorError"):
        await ask(model, question=["a"])


@pytest.mark.parametrize("asked", ["seconds", "date"])
async def test_retry_after_is_waited_for_by_all_rows(asked: str) -> None:
    began: list[float] = []

    def fail(text: str, count: int) -> web.Response | None:
        began.append(time.monotonic())
        if len(began) > 1:
            return None
        date = email.utils.formatdate(time.time() + 3, usegmt=True)  # in whole seconds
        when = "2" if asked == "seconds" else date
        return web.Response(status=429, headers={"Retry-After": when})

    async with served(failing(fail)) as server:
        model = chat(url=server.url, concurrency=1, **QUICK)
        assert await ask(model, question=["a", "b"]) == ["a", "b"]
    assert began[1] - began[0] >= 1.9
    assert len(server.requests) == 3


async def test_an_endpoint_whose_quota_is_used_up_ends_the_job() -> None:
    async with served(always(429, "quota", **{"Retry-After": "86400"})) as server:
        with pytest.raises(JobFailure, match="asks to wait 86400 seconds: its quota is used up"):
            await ask(chat(url=server.url), question=["a"])
    assert len(server.requests) == 1


async def test_what_would_take_too_long_is_not_waited_for() -> None:
    async with served(always(500, "broken", **{"Retry-After": "86400"})) as server:
        (answer,) = await ask(chat(url=server.url), question=["a"])
    assert str(answer) == "the endpoint answered 500: broken"
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [200, 400, 401, 500, 503])
async def test_a_key_that_the_endpoint_repeats_is_not_shown(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_KEY", "sk-secret1")
    said = json.dumps({"error": "Incorrect key: Bearer sk-secret1", "choices": [{}]})
    async with served(always(status, said)) as server:
        model = chat(url=server.url, apiKeyEnv="LLM_KEY", **QUICK)
        try:
            (message,) = map(str, await ask(model, question=["a"]))
        except (ConnectionError, JobFailure) as error:
            message = str(error)
    assert "Incorrect key: Bearer ***" in message
    assert "secret1" not in message


@pytest.mark.parametrize("content", ["", "{", "<html>", "[]", "{}", '{"choices": []}', '"ok"'])
async def test_an_answer_that_is_none_is_tried_again(content: str) -> None:
    first = failing(lambda _, count: web.Response(text=content) if count == 1 else None)
    async with served(first) as server:
        assert await ask(chat(url=server.url, **QUICK), question=["a"]) == ["a"]
    assert len(server.requests) == 2


async def test_an_answer_without_text_is_the_rows_error() -> None:
    empty: dict[str, Any] = {"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}
    async with served(failing(lambda *_: web.json_response(empty))) as server:
        (error,) = await ask(chat(url=server.url), question=["a"])
    assert str(error) == "the answer is no text: null"
    assert len(server.requests) == 1
