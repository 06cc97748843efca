"""An odd answer of one row is that row's error: no other row is asked for again."""

from __future__ import annotations

import json

import pytest
from aiohttp import web

from batchinference.pipeline.blocks import to_column
from batchinference.pipeline.endpoint import RequestFailed, endpoint
from support.endpoints import ask, chat, json_endpoint
from support.http_servers import Answer, served

HALF = r'"\ud800"'
DEEP = "[" * 100_000 + "]" * 100_000
ALMOST_DEEP = "[" * 900 + "]" * 900
ODD: dict[str, tuple[str, str, str]] = {
    "half a pair of surrogates": ("text", HALF, "is no text of Unicode"),
    "half a pair in JSON": ("text", f'{{"a": [{HALF}]}}', "is no text of Unicode"),
    "half a pair as a number": ("number", HALF, "is no number"),
    "a long integer": ("integer", str(10**30), "does not fit 64 bits"),
    "a longer integer": ("integer", "1" + "0" * 5000, "cannot be read: ValueError"),
    "a long number": ("number", str(10**400), "does not fit 64 bits"),
    "long numbers": ("numbers", f"[{10**400}]", "is no list of numbers"),
    "lists in lists": ("text", DEEP, "cannot be read: RecursionError"),
    "numbers in many lists": ("numbers", ALMOST_DEEP, "the answer"),
}


def saying(odd: str, good: str) -> Answer:
    """Answers the row 'odd' so, and others well."""

    async def answer(request: web.Request) -> web.Response:
        asked = json.loads(await request.text())["instances"][0]
        return web.Response(body=f'{{"v": {odd if asked == "odd" else good}}}'.encode())

    return answer


@pytest.mark.parametrize(("kind", "odd", "words"), ODD.values(), ids=ODD)
async def test_an_odd_answer_is_the_error_of_its_row_alone(kind: str, odd: str, words: str) -> None:
    good = {"text": '"fine"', "numbers": "[1]"}.get(kind, "1")
    async with served(saying(odd, good)) as server:
        model = json_endpoint(url=server.url, resultPath="v", resultType=kind)
        error, answer = await ask(model, value=["odd", "even"])
    assert isinstance(error, RequestFailed)
    assert words in str(error)
    assert not isinstance(answer, Exception)
    assert len(server.requests) == 2
    to_column([str(error)])  # as the errors of a job hold it


async def test_half_a_pair_of_surrogates_of_a_chat_is_an_error_of_its_row() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"choices": [{"message": {"content": "\ud800"}}]})

    async with served(answer) as server:
        (error,) = await ask(chat(url=server.url), question=["odd"])
    assert str(error) == 'the answer is no text of Unicode: "?"'


@pytest.mark.parametrize("value", [-(1 << 63), (1 << 63) - 1])
async def test_integers_of_64_bits_are_taken(value: int) -> None:
    async with served(saying("", str(value))) as server:
        model = json_endpoint(url=server.url, resultPath="v", resultType="integer")
        assert await ask(model, value=["even"]) == [value]


async def test_an_answer_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_ANSWER", 1 << 20)
    async with served(saying(json.dumps("x" * (1 << 20)), json.dumps("x" * 1000))) as server:
        model = json_endpoint(url=server.url, resultPath="v")
        error, answer = await ask(model, value=["odd", "even"])
    assert str(error) == "the answer is longer than 1 MiB"
    assert answer == "x" * 1000
    assert len(server.requests) == 2


async def test_of_a_long_error_the_beginning_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_ANSWER", 1 << 20)

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=400, text="wrong " * (1 << 20))

    async with served(answer) as server:
        (error,) = await ask(json_endpoint(url=server.url), value=["x"])
    assert str(error).startswith("the endpoint answered 400: wrong wrong")
