"""The runtime http: answers equal those of OpenAI's client; what fails after a failed request."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from batchinference.pipeline.error_classification import is_about_the_row
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.runtimes.http_retry_policy import RequestFailed
from plugins.messages import Messages
from support.documents.http_models import ask, chat
from support.servers.corrupting_proxy import FAULTS, Faults, Upstream, corrupting
from support.servers.openai import openai_server, save_language_model
from support.servers.ports import free_port
from support.servers.scripted_http import Answer, answering, served

pytestmark = pytest.mark.usefixtures("no_backoff")
QUICK = {"retries": 1, "prompt": "{question}"}


def failing(fail: Callable[[str, int], web.Response | None]) -> Answer:
    """Answer with the prompt, unless `fail` returns another answer to a prompt and its n-th try."""
    tries: Counter[str] = Counter()

    async def answer(request: web.Request) -> web.Response:
        text = json.loads(await request.text())["messages"][0]["content"]
        tries[text] += 1
        good = web.json_response({"choices": [{"message": {"content": text}}]})
        return fail(text, tries[text]) or good

    return answer


def always(status: int, text: str = "", **headers: str) -> Answer:
    return failing(lambda *_: web.Response(status=status, text=text, headers=headers))


async def test_rejected_request_fails_its_row_only() -> None:
    def reject(text: str, _: int) -> web.Response | None:
        return web.Response(status=int(text), text="no" * 200) if text.isdigit() else None

    rejected = ["400", "403", "413", "422"]
    async with served(failing(reject)) as server:
        answers = await ask(chat(url=server.url), question=["a", *rejected, "c"])
    assert [answers[0], answers[-1]] == ["a", "c"]
    for status, answer in zip(rejected, answers[1:-1], strict=True):
        assert isinstance(answer, RequestFailed)
        assert is_about_the_row(answer)
        assert str(answer) == f"the endpoint answered {status}: {'no' * 150}..."
    assert len(server.requests) == len(rejected) + 2


def refusing_formats(rows: str) -> Answer:
    """Answer with JSON, but refuse rows with one of these texts, and `response_format` for all."""

    async def answer(request: web.Request) -> web.Response:
        body = json.loads(await request.text())
        text = body["messages"][0]["content"]
        if text in rows or ("response_format" in body and "all" in rows):
            return web.Response(status=400, text="'pattern' is not supported")
        return web.json_response({"choices": [{"message": {"content": '"x"'}}]})

    return answer


async def test_schema_that_the_endpoint_refuses_fails_the_job(messages: Messages) -> None:
    schema = {"jsonSchema": {"type": "string", "pattern": "x"}}
    async with served(refusing_formats("all b")) as server:
        with pytest.raises(JobFailure) as failure:
            await ask(chat(url=server.url, schema=schema, concurrency=1), question=["b", "a", "c"])
        messages.check(failure.value.message)
    assert len(server.requests) <= 6, "at most two for each row"
    async with served(refusing_formats("b")) as server:
        rows = ["b", "a", "b"]
        answers = await ask(chat(url=server.url, schema=schema, concurrency=1), question=rows)
        assert [isinstance(one, RequestFailed) for one in answers] == [True, False, True]
        assert len(server.requests) == len(rows) + 1, "only the first is sent again"


async def test_error_about_every_row_fails_the_job_at_once() -> None:
    for status in (301, 307, 401, 404, 405):
        async with served(always(status, "not here", Location="/other")) as server:
            with pytest.raises(JobFailure, match=f"endpoint answered {status}: not here .http"):
                await ask(chat(url=server.url), question=["a"])
        assert len(server.requests) == 1


async def test_persistent_error_of_one_row_fails_the_row() -> None:
    one = failing(lambda text, _: web.Response(status=500, text="oh") if text == "b" else None)
    async with served(one) as server:
        answers = await ask(chat(url=server.url, **QUICK), question=["a", "b", "c"])
        (alone,) = await ask(chat(url=server.url, **QUICK), question=["b"])
    assert [str(answer) for answer in answers] == ["a", "the endpoint answered 500: oh", "c"]
    assert isinstance(alone, RequestFailed), "also without other rows"


@pytest.mark.parametrize(
    ("how", "message"), [("hang", "within 1s"), ("drip", "within 1s"), ("cut", "reached: Server")]
)
async def test_missing_answer_fails_the_row_if_others_have_one(how: str, message: str) -> None:
    async with served(never_answering(b"bad", how)) as server:
        model = chat(url=server.url, **QUICK, timeout="1s", concurrency=1)
        first, missing, last = await ask(model, question=["a", "bad", "c"])
        assert [first, last] == ["a", "c"]
        assert isinstance(missing, RequestFailed)
    async with served(never_answering(b"a", how)) as server:
        model = chat(url=server.url, **QUICK, timeout="1s")
        with pytest.raises(ConnectionError, match=message):
            await ask(model, question=["a"])
    assert len(server.requests) == 2


async def drip(request: web.Request) -> None:
    """Send headers and then content byte by byte until the client disconnects."""
    assert request.transport is not None
    request.transport.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    for part in itertools.chain([b"."] * 10, [b"\r\n\r\n"], itertools.repeat(b" ")):
        if request.transport.is_closing():
            return
        request.transport.write(part)
        await asyncio.sleep(0.01)


def never_answering(text: bytes, how: str) -> Answer:
    """Never answer requests whose prompt starts with the text. Otherwise answer with the prompt."""
    good = failing(lambda *_: None)

    async def answer(request: web.Request) -> web.StreamResponse:
        if b'"content": "' + text in await request.read():
            if how == "drip":
                await drip(request)
            if how == "hang":
                await asyncio.Event().wait()
            assert request.transport is not None
            request.transport.abort()
        return await good(request)

    return answer


async def test_unavailable_endpoint_fails_the_attempt() -> None:
    for status, rows in ((429, 3), (502, 3), (503, 3), (500, 12)):
        questions = [f"row {number}" for number in range(rows)]
        async with served(always(status, "later")) as server:
            with pytest.raises(ConnectionError, match=f"answered {status}: later") as caught:
                await ask(chat(url=server.url, **QUICK), question=questions)
        assert not is_about_the_row(caught.value), status


async def test_refused_connection_fails_the_attempt() -> None:
    with pytest.raises(ConnectionError, match="cannot be reached: ClientConnectorError"):
        await ask(chat(url=f"http://127.0.0.1:{free_port()}", **QUICK), question=["a"])


async def test_too_long_retry_after_is_not_waited_for(messages: Messages) -> None:
    async with served(always(429, "quota", **{"Retry-After": "86400"})) as server:
        with messages.raises(JobFailure):
            await ask(chat(url=server.url), question=["a"])
    assert len(server.requests) == 1
    async with served(always(500, "broken", **{"Retry-After": "86400"})) as server:
        (answer,) = await ask(chat(url=server.url), question=["a"])
    assert str(answer) == "the endpoint answered 500: broken"
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [200, 400, 401, 500, 503])
async def test_key_in_an_answer_is_hidden(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_KEY", "sk-secret1")
    body = json.dumps({"error": "Incorrect key: Bearer sk-secret1", "choices": [{}]})
    async with served(always(status, body)) as server:
        model = chat(url=server.url, apiKeyEnv="LLM_KEY", **QUICK)
        try:
            (message,) = map(str, await ask(model, question=["a"]))
        except (ConnectionError, JobFailure) as error:
            message = str(error)
    assert "Incorrect key: Bearer ***" in message
    assert "secret1" not in message


async def test_no_part_of_a_key_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_KEY", 'zq"zqzqzqzqzqzqzqzq')
    for status, limit in ((200, 200), (400, 300)):
        for before in range(limit - 16, limit, 4):
            body = json.dumps(["x" * before, 'zq"zqzqzqzqzqzqzqzq'])
            async with served(always(status, body)) as server:
                model = chat(url=server.url, apiKeyEnv="LLM_KEY", prompt="{question}", retries=0)
                (error,) = await ask(model, question=["a"])
            assert "xxx" in str(error)
            assert "zq" not in str(error), (status, before)


async def test_malformed_answer_is_retried() -> None:
    rows = ["", "{", "<html>", "[]", "{}", '{"choices": []}', '"ok"']
    first = failing(lambda text, count: web.Response(text=text[2:]) if count == 1 else None)
    async with served(first) as server:
        questions = [f"> {row}" for row in rows]
        assert await ask(chat(url=server.url, **QUICK), question=questions) == questions
    assert len(server.requests) == 2 * len(rows)


async def test_answer_without_one_result_fails_the_row(messages: Messages) -> None:
    refused, half = ({"message": {"content": text}} for text in (None, "half"))
    for *results, requests in (
        ({**refused, "finish_reason": "stop"}, 1),
        ({**half, "finish_reason": "error"}, 2),
        ({**half, "finish_reason": "abort"}, 2),
        (half, refused, 1),
        *(({"embedding": value}, 1) for value in ([], [[1.0]])),
        ({"embedding": [1.0]}, {"embedding": [2.0]}, 1),
    ):
        async with served(answering(200, {"choices": results, "data": results})) as server:
            api = "embeddings" if "embedding" in results[0] else "chat"
            errors = await ask(chat(url=server.url, api=api, retries=1), question=["a"] * 11)
        messages.check(errors[0])
        assert {*map(type, errors)} == {RequestFailed}
        assert len(server.requests) == requests * 11


if TYPE_CHECKING:
    import openai

ROWS = [f"{what} number {number}" for number in range(20) for what in ("star", "tea")]
SAMPLING = {"max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language-model")
    save_language_model(folder)
    return folder


@pytest.fixture(scope="module")
def server(language_model: Path) -> Iterator[str]:
    with openai_server(language_model) as url:
        yield url


@pytest.fixture
async def client(server: str) -> AsyncIterator[openai.AsyncOpenAI]:
    import openai

    async with openai.AsyncOpenAI(base_url=server, api_key="none", max_retries=0) as opened:
        yield opened


@pytest.mark.long("serve")
async def test_chat_answers_equal_those_of_openais_client(
    server: str, language_model: Path, client: openai.AsyncOpenAI
) -> None:
    fields = {"system": "Be brief.", "prompt": "Please {question}!", "sampling": SAMPLING}
    answers = await ask(chat(url=server, name=str(language_model), **fields), question=ROWS[:12])
    for row, answer in zip(ROWS, answers, strict=False):
        expected = await client.chat.completions.create(
            model=str(language_model),
            messages=[
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": f"Please {row}!"},
            ],
            temperature=0,
            max_tokens=12,
        )
        assert answer == expected.choices[0].message.content
    assert len(set(answers)) > 6, "the model gives too few different answers"


async def test_each_row_gets_its_own_answer_through_network_faults() -> None:
    async def complete(request: web.Request) -> web.Response:
        prompt = json.loads(await request.text())["prompt"]
        return web.json_response({"choices": [{"text": f"answer to {prompt}"}]})

    faults = Faults(share=0.5, in_a_row=3)
    async with (
        served(complete) as upstream,
        served(corrupting(Upstream(upstream.url), faults)) as proxy,
    ):
        fields = {"api": "completions", "sampling": SAMPLING, "concurrency": 8}
        model = chat(url=f"{proxy.url}/v1", timeout="1s", **fields)
        answers = await ask(model, question=ROWS)
    assert answers == [f"answer to {row}" for row in ROWS]
    assert set(faults.met) == set(FAULTS)
    assert len(proxy.requests) >= len(ROWS) + faults.met.total()
