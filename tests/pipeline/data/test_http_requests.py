"""The runtime http: request bodies and answers."""

from __future__ import annotations

import base64
import gc
import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from PIL import Image
from pydantic import TypeAdapter

from batchinference import credentials
from batchinference.credentials import without_credentials
from batchinference.openai_urls import PATHS
from batchinference.pipeline.arrow import to_column
from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.row_warnings import collect_warnings
from batchinference.pipeline.runtimes import http_client as client
from batchinference.pipeline.runtimes.http_retry_policy import RequestFailed
from batchinference.spec.models import HttpModel
from plugins.messages import Messages
from support.documents.http_models import ask, chat, json_endpoint
from support.outputs.row_warnings import plain, tokens_in
from support.servers.scripted_http import Server, answering, served

PIXELS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)


def saying(text: str) -> Any:
    choice = {"message": {"content": text}, "text": text}
    return answering(200, {"choices": [choice], "data": [{"embedding": [1.0]}]})


def bodies(server: Server) -> list[Any]:
    return [request.body for request in server.requests]


def pixels_of(data_uri: str) -> np.ndarray:
    kind, _, content = data_uri.partition(";base64,")
    assert kind.startswith("data:image/")
    with Image.open(io.BytesIO(base64.b64decode(content))) as image:
        return np.asarray(image)


async def test_text_that_the_endpoint_may_have_cut_is_counted() -> None:
    def used(tokens: Any) -> Any:
        usage = {} if tokens is None else {"usage": {"prompt_tokens": tokens}}
        return answering(200, {"data": [{"embedding": [1.0]}], **usage})

    for tokens, too_long, expected in (
        (7, None, []),
        (8, None, [(0, "TextCut", 0)]),
        (9, "truncate", [(0, "TextCut", 0)]),
        (8, "fail", None),
        (None, None, None),
    ):
        async with served(used(tokens)) as server:
            fields = {"url": server.url, "maxInputTokens": 8}
            model = chat(api="embeddings", **fields, **({"tooLong": too_long} if too_long else {}))
            with collect_warnings() as warnings:
                (result,) = await ask(model, question=["a"])
        if expected is None:
            assert isinstance(result, RequestFailed)
        else:
            assert (result.tolist(), plain(warnings)) == ([1.0], expected)


async def test_details_are_what_the_endpoint_says() -> None:
    unknown = dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens"))
    cached = {"prompt_tokens_details": {"cached_tokens": 2}}
    known = {"prompt_tokens": 3, "completion_tokens": 5}
    cases: list[tuple[Any, Any, Any]] = [
        ({**known, **cached}, "length", {**known, "cached_tokens": 2}),
        (known, "stop", {**known, "cached_tokens": None}),
        ({"prompt_tokens": -1, "completion_tokens": True, **cached}, 7, None),
        ([known], None, None),
        (known, "r" * 65, {**known, "cached_tokens": None}),
    ]
    for usage, reason, expected in cases:
        choice = {"message": {"content": "a"}, "finish_reason": reason}
        async with served(answering(200, {"choices": [choice], "usage": usage})) as server:
            (result,) = await ask(chat(url=server.url, details="about"), question=["a"])
        cached_tokens = 2 if isinstance(usage, dict) and cached.items() <= usage.items() else None
        about = expected or {**unknown, "cached_tokens": cached_tokens}
        said = reason if reason != "r" * 65 else f"{reason[:64]}..."
        assert result == ("a", {**about, "finish_reason": said if expected else None})


async def test_tokens_and_cut_answers_are_reported() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 5}
    choice = {"message": {"content": "a"}, "finish_reason": "length"}
    answer = {"choices": [choice], "data": [{"embedding": [1.0]}], "usage": usage}
    for api, tokens, warned in (
        ("chat", {"inputTokens": {0: 3, 1: 3}, "outputTokens": {0: 5, 1: 5}}, ["AnswerCut"] * 2),
        ("embeddings", {"inputTokens": {0: 3, 1: 3}}, []),
    ):
        async with served(answering(200, answer)) as server:
            with collect_warnings() as warnings:
                await ask(chat(url=server.url, api=api), question=["a", "b"])
        assert tokens_in(warnings) == tokens
        assert [name for _, name, _ in plain(warnings)] == warned


async def test_schema_is_a_response_format_and_invalid_answers_are_sent_back() -> None:
    number = {"type": "integer", "maximum": 5}
    texts = iter(["7", "3"])

    async def answer(_: web.Request) -> web.Response:
        text = next(texts)
        return web.json_response({"choices": [{"message": {"content": text}, "text": text}]})

    for api in ("chat", "completions"):
        texts = iter(["7", "3"])
        fields = {"api": api, "schema": {"jsonSchema": number}, "repair": 1}
        async with served(answer) as server:
            assert await ask(chat(url=server.url, **fields), question=["a"]) == [3]
        first, second = bodies(server)
        named = {"name": "answer", "strict": True, "schema": number}
        expected = {"type": "json_schema", "json_schema": named}
        assert first["response_format"] == second["response_format"] == expected
        if api == "chat":
            prompt, previous, request = second["messages"]
            assert [prompt] == first["messages"]
            assert previous == {"role": "assistant", "content": "7"}
            assert "greater than 5 (maximum)" in request["content"]
        else:
            assert second["prompt"].startswith("a\n\n7\n\n")


async def test_chat_has_system_message_turns_and_prompt() -> None:
    turns = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    fields = {"system": "Use {{}}.", "messages": turns, "prompt": "{question}?"}
    async with served(saying("5")) as server:
        model = chat(url=server.url + "/v1", sampling={"temperature": 0.5}, **fields)
        assert await ask(model, question=["2 + 3"]) == ["5"]
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.body == {
        "model": "org/model",
        "messages": [
            {"role": "system", "content": "Use {}."},
            *turns,
            {"role": "user", "content": "2 + 3?"},
        ],
        "temperature": 0.5,
    }


async def test_text_or_conversation_without_prompt_is_sent_unchanged() -> None:
    conversation = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    async with served(saying("ok")) as server:
        await ask(chat(url=server.url), question=["{curly}"])
        await ask(chat(url=server.url, api="completions"), question=["{curly}"])
        model = chat(url=server.url, system="Hm.")
        await ask(model, question=[np.array(conversation, dtype=object)])
    assert bodies(server) == [
        {"model": "org/model", "messages": [{"role": "user", "content": "{curly}"}]},
        {"model": "org/model", "prompt": "{curly}"},
        {"model": "org/model", "messages": [{"role": "system", "content": "Hm."}, *conversation]},
    ]


async def sent_image(photo: Any) -> Any:
    """Return the URL that a chat sends for an image."""
    async with served(saying("ok")) as server:
        inputs = {"question": "text", "photo": "image"}
        model = chat(url=server.url, inputs=inputs, images=["photo"], prompt="{question}")
        assert await ask(model, question=["What?"], photo=[photo]) == ["ok"]
    image, text = bodies(server)[0]["messages"][0]["content"]
    assert text == {"type": "text", "text": "What?"}
    assert image["type"] == "image_url"
    return image["image_url"]["url"]


async def test_pixels_are_sent_as_a_lossless_image() -> None:
    for pixels in (PIXELS, PIXELS[..., :1], PIXELS[..., 0]):
        assert np.array_equal(pixels_of(await sent_image(pixels)), np.squeeze(pixels))


async def test_encoded_images_and_urls_are_sent_unchanged() -> None:
    address = "https://pictures.example/a.png"
    assert await sent_image(address) == address
    for kind in ("PNG", "JPEG"):
        buffer = io.BytesIO()
        Image.fromarray(PIXELS).save(buffer, kind)
        head, _, content = (await sent_image(buffer.getvalue())).partition(",")
        assert head == f"data:image/{kind.lower()};base64"
        assert base64.b64decode(content) == buffer.getvalue()


async def test_embeddings_are_float32_vectors() -> None:
    async def embed(request: web.Request) -> web.Response:
        text = json.loads(await request.text())["input"]
        return web.json_response({"data": [{"embedding": [len(text), 0.5]}]})

    async with served(embed) as server:
        model = chat(url=server.url, api="embeddings", sampling={"dimensions": 2})
        vectors = await ask(model, question=["a", "abc"])
    assert [vector.tolist() for vector in vectors] == [[1.0, 0.5], [3.0, 0.5]]
    assert {vector.dtype for vector in vectors} == {np.dtype(np.float32)}
    assert sorted(body["input"] for body in bodies(server)) == ["a", "abc"]
    assert {body["dimensions"] for body in bodies(server)} == {2}


async def test_sole_placeholder_keeps_the_type_of_the_value() -> None:
    inputs = {name: name for name in ("number", "text", "list", "file", "photo", "nothing")}
    body = {
        "instances": [{"n": "{number}", "list": "{list}", "file": "{file}", "none": "{nothing}"}],
        "said": "{{{text}}} is {number}",
        "photo": "{photo}",
        "constant": [1, True, None, "{{}}"],
    }
    async with served(answering(200, {})) as server:
        model = json_endpoint(url=server.url, inputs=inputs, images=["photo"], body=body)
        row = {"number": np.int64(7), "text": "seven", "list": np.array([1.5, 2]), "file": b"\x00"}
        row |= {"photo": PIXELS, "nothing": None}
        await ask(model, **{name: [value] for name, value in row.items()})
    (sent,) = bodies(server)
    assert np.array_equal(pixels_of(sent.pop("photo")), PIXELS)
    assert sent == {
        "instances": [{"n": 7, "list": [1.5, 2.0], "file": "AA==", "none": None}],
        "said": "{seven} is 7",
        "constant": [1, True, None, "{}"],
    }


async def test_nan_fails_its_row() -> None:
    async with served(answering(200, {})) as server:
        model = json_endpoint(url=server.url)
        wrong, listed, right = await ask(model, value=[float("nan"), [1.0, float("inf")], 1.5])
    assert "NaN" in str(wrong)
    assert "NaN" in str(listed)
    assert not isinstance(right, Exception)
    (request,) = server.requests
    assert request.body == {"instances": [1.5]}
    assert request.headers["Content-Type"] == "application/json"


async def test_result_path_and_type_select_the_answer() -> None:
    response = {"a": [{"b": 1}, "x"], "c": True, "v": [[1, 2], [3, 4]]}
    expected: list[tuple[dict[str, Any], Any]] = [
        ({}, json.dumps(response)),
        ({"resultPath": "a.1"}, "x"),
        ({"resultPath": "a.0"}, '{"b": 1}'),
        ({"resultPath": "a.0.b", "resultType": "number"}, 1.0),
        ({"resultPath": "a.0.b", "resultType": "integer"}, 1),
        ({"resultPath": "a.-1", "resultType": "text"}, "x"),
        ({"resultPath": "c", "resultType": "boolean"}, True),
    ]
    async with served(answering(200, response)) as server:
        for fields, value in expected:
            (answer,) = await ask(json_endpoint(url=server.url, **fields), value=["x"])
            assert (answer, type(answer)) == (value, type(value)), fields
        model = json_endpoint(url=server.url, resultPath="v", resultType="numbers")
        (numbers,) = await ask(model, value=["x"])
    assert (numbers.tolist(), numbers.dtype) == ([[1, 2], [3, 4]], np.float32)


async def test_empty_answer_has_no_dimensions_and_infinity_stays() -> None:
    replies = iter(["[]", "[[1, -Infinity]]", "[]", "[[1, -Infinity]]"])

    async def reply(_: web.Request) -> web.Response:
        return web.Response(text=f'{{"v": {next(replies)}}}')

    async with served(reply) as server:
        model = json_endpoint(url=server.url, resultPath="v", resultType="numbers", concurrency=1)
        answers = await ask(model, value=[*"abcd"])
    assert [(*one.shape, one.sum()) for one in answers] == [(0, 0, 0), (1, 2, -np.inf)] * 2


async def test_json_of_an_answer_has_its_numbers() -> None:
    text = '{"é": [1.50, 12345678901234567.89, -1E+400, true, null], "b": {"c": "1.50"}}'
    async with served(answering(200, f'{{"v": {text}}}')) as server:
        assert await ask(json_endpoint(url=server.url, resultPath="v"), value=["x"]) == [text]


async def test_answer_of_another_type_fails_the_row() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"resultPath": "b"}, "the answer has no 'b': "),
        ({"resultPath": "a.7"}, "the answer has no 'a.7': "),
        ({"resultPath": "a.x"}, "the answer has no 'a.x': "),
        ({"resultPath": "a.0.x"}, "the answer has no 'a.0.x': "),
        ({"resultType": "number"}, "the answer is not a number: "),
        ({"resultPath": "a.1", "resultType": "number"}, "the answer is not a number: true"),
        ({"resultPath": "a.0", "resultType": "integer"}, 'the answer is not an integer: "x"'),
        ({"resultPath": "a.0", "resultType": "boolean"}, "the answer is neither true nor false: "),
        ({"resultPath": "a", "resultType": "numbers"}, "the answer is not a list of numbers"),
        ({"resultPath": "a.1", "resultType": "numbers"}, "the answer is not a list of numbers"),
    ]
    async with served(answering(200, {"a": ["x", True]})) as server:
        for fields, reason in cases:
            (error,) = await ask(json_endpoint(url=server.url, **fields), value=["x"])
            assert isinstance(error, Exception)
            assert str(error).startswith(reason)
    assert len(server.requests) == len(cases), "no request is retried"


async def test_unusable_value_fails_its_row() -> None:
    for fields, value, message in (
        ({}, None, "input 'question' is null"),
        ({"prompt": "{question}"}, None, "input 'question' is null"),
        ({}, 7, "expected text or a list of messages, got int"),
        ({}, [{"content": "x"}], "a message of the conversation is not an object with a 'role'"),
        ({"api": "embeddings"}, [1], "expected text, got list"),
    ):
        async with served(saying("ok")) as server:
            wrong, right = await ask(chat(url=server.url, **fields), question=[value, "fine"])
        assert str(wrong) == message
        assert not isinstance(right, Exception), message
        assert len(server.requests) == 1, message


async def test_value_without_an_image_fails_its_row() -> None:
    photos = [None, "not an address", np.zeros((2, 2), np.float32), b"no file", PIXELS]
    async with served(saying("ok")) as server:
        model = chat(url=server.url, inputs={"photo": "p"}, images=["photo"], prompt="What?")
        *wrong, right = await ask(model, photo=photos)
    assert all(isinstance(each, Exception) for each in wrong)
    assert right == "ok"


async def test_keys_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_KEY", "sk-secret1\n")
    monkeypatch.setenv("TENANT", "team")
    async with served(saying("ok")) as server:
        model = chat(url=server.url, apiKeyEnv="LLM_KEY", headersFrom={"X-Tenant": "TENANT"})
        assert await ask(model, question=["hello"]) == ["ok"]
    headers = server.requests[0].headers
    assert headers["Authorization"] == "Bearer sk-secret1"
    assert headers["X-Tenant"] == "team"


def test_values_of_own_headers_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_values", set())
    monkeypatch.setenv("OWN_HEADER", "value-of-own-header")
    model = chat(headersFrom={"X-Own": "OWN_HEADER"})
    client.Credentials(TypeAdapter(HttpModel).validate_python(model))
    assert without_credentials("got value-of-own-header") == "got ***"


async def test_missing_key_is_rejected(monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    monkeypatch.delenv("LLM_KEY", raising=False)
    for value in (None, "", " \n"):
        if value is not None:
            monkeypatch.setenv("LLM_KEY", value)
        with messages.raises(ModelLoad):
            await ask(chat(apiKeyEnv="LLM_KEY"), question=["hello"])


HALF = r'"\ud800"'  # half of a surrogate pair
DEEP, ALMOST_DEEP = ("[" * depth + "]" * depth for depth in (100_000, 900))
MALFORMED: list[tuple[str, str, str]] = [
    ("text", HALF, "is not valid Unicode"),
    ("text", f'{{"a": [{HALF}]}}', "is not valid Unicode"),
    ("number", HALF, "is not a number"),
    ("integer", str(10**30), "does not fit 64 bits"),
    ("integer", "1" + "0" * 5000, "cannot be read: ValueError"),
    ("number", str(10**400), "would be rounded as float64"),
    ("number", str(2**53 + 1), "would be rounded as float64"),
    ("number", "1e400", "would be rounded as float64: 1E+400"),
    ("number", "1e9999999999999999999", "the exponent of a number has too many digits"),
    ("text", '{"a": [1e9999999999999999999]}', "the exponent of a number has too many digits"),
    ("numbers", f"[{10**400}]", "cannot be read: OverflowError"),
    ("numbers", f"[[1.5, {2**24 + 1}]]", "would be rounded as float32"),
    ("numbers", "[1e39]", "would be rounded as float32"),
    ("numbers", "[1e400]", "would be rounded as float32"),
    ("numbers", "[[1]]", "has 2 dimensions, the first had 1"),
    ("numbers", "[true, 2]", "is not a list of numbers"),
    ("numbers", '["1.5", "2"]', "is not a list of numbers"),
    ("numbers", "[1.5, null]", "is not a list of numbers"),
    ("text", '{"a": {"b": 1, "b": 2}}', "an object has two fields 'b'"),
    ("text", DEEP, "it is nested too deep"),
    ("numbers", ALMOST_DEEP, "the answer"),
]
"""The result type, the JSON value in the answer, and the error."""


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Collect no garbage: a finalizer that warns while the stack is full fails the test."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
async def test_malformed_value_fails_its_row_only() -> None:
    for kind, odd, message in MALFORMED:
        good = {"text": '"fine"', "numbers": "[1]"}.get(kind, "1")

        async def reply(request: web.Request, odd: str = odd, good: str = good) -> web.Response:
            asked = json.loads(await request.text())["instances"][0]
            return web.Response(body=f'{{"v": {odd if asked == "odd" else good}}}'.encode())

        async with served(reply) as server:
            model = json_endpoint(url=server.url, resultPath="v", resultType=kind)
            answer, error = await ask({**model, "concurrency": 1}, value=["even", "odd"])
        assert isinstance(error, RequestFailed), (kind, message)
        assert message in str(error), kind
        assert not isinstance(answer, Exception), (kind, message)
        assert len(server.requests) == 2, (kind, message)
        to_column([str(error)])  # the message can be stored as text


async def test_cookies_are_not_kept() -> None:
    async def answer(_: web.Request) -> web.Response:
        good = {"choices": [{"message": {"content": "ok"}}]}
        return web.json_response(good, headers={"Set-Cookie": "a=b"})

    async with served(answer) as server:
        url = server.url.replace("127.0.0.1", "localhost")  # IP addresses have no cookies
        assert await ask(chat(url=url, concurrency=1), question=["a", "b"]) == ["ok", "ok"]
    assert ["Cookie" in request.headers for request in server.requests] == [False, False]


@pytest.mark.parametrize("scheme", ["http://", ""])
@pytest.mark.parametrize(("without", "asked"), [("", True), ("endpoint.invalid", False)])
async def test_proxy_of_the_environment_is_asked(
    monkeypatch: pytest.MonkeyPatch, scheme: str, without: str, asked: bool
) -> None:
    async with served(saying("by proxy")) as proxy:
        address = proxy.url.removeprefix("http://")
        monkeypatch.setenv("http_proxy", f"{scheme}user:password@{address}")
        monkeypatch.setenv("no_proxy", without)
        model = chat(url="http://endpoint.invalid/v1", prompt="{question}", retries=0)
        if asked:
            assert await ask(model, question=["a"]) == ["by proxy"]
        else:
            with pytest.raises(ConnectionError):
                await ask(model, question=["a"])
    assert bool(proxy.requests) == asked


REQUESTS: dict[str, Any] = {
    "inputs": {"body": "body", "url": "url"},
    "request": "body",
    "requestUrl": "url",
}


async def test_complete_request_is_sent_and_its_response_kept() -> None:
    response = (
        '{"choices": [{"n": 1.50, "finish_reason": "length"}, 7],\n '
        '"usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}}'
    )

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=response, content_type="application/json")

    texts = ['{"model": "own", "tools": [1], "stream": false}', '{"input": "a"}', '{"prompt": 1}']
    urls = [None, "/v1/embeddings", "/completions"]
    for name, models in (("served", ["served"] * 3), (None, ["own", None, None])):
        async with served(answer) as server:
            model = chat(url=server.url + "/v1", name=name, **REQUESTS)
            with collect_warnings() as warnings:
                assert await ask(model, body=texts, url=urls) == [response] * 3
        tokens = {"inputTokens": 3, "cachedTokens": 2}
        assert tokens_in(warnings) == {n: dict.fromkeys(range(3), x) for n, x in tokens.items()}
        assert sorted(plain(warnings)) == [(row, "AnswerCut", 0) for row in range(3)]
        sent = {request.path: request.body for request in server.requests}
        assert sorted(sent) == ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
        assert [sent[f"/v1{path}"].get("model") for path in PATHS] == [
            models[0],
            models[2],
            models[1],
        ]
        assert sent["/v1/chat/completions"]["tools"] == [1]
        assert "stream" not in sent["/v1/chat/completions"]


async def test_row_that_is_no_request_fails(messages: Messages) -> None:
    good = "{}"
    rows = [
        ("{", None),
        ("[]", None),
        (7, None),
        ('{"stream": true}', None),
        ('{"n": NaN}', None),
        ('{"n": 1, "n": 2}', None),
        (good, "/v1/files"),
        (good, None),
    ]
    async with served(saying("x")) as server:
        bodies_, urls = ([*values] for values in zip(*rows, strict=True))
        *errors, answered = await ask(chat(url=server.url, **REQUESTS), body=bodies_, url=urls)
    assert json.loads(answered)["choices"]
    assert len(server.requests) == 1
    messages.check(*errors)


@pytest.mark.parametrize("status", [200, 400, 404, 500])
async def test_refused_request_fails_its_row_only(status: int, messages: Messages) -> None:
    async with served(answering(status, {"error": {"message": "no"}})) as server:
        (error,) = await ask(chat(url=server.url, retries=0, **REQUESTS), body=["{}"], url=[None])
    assert isinstance(error, RequestFailed)
    messages.check(error)
