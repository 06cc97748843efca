"""The runtime http: request bodies and the reading of answers."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from PIL import Image

from batchinference.pipeline.blocks import to_column
from batchinference.pipeline.endpoint import RequestFailed, endpoint
from batchinference.pipeline.failures import ModelLoad
from support.documents.http_models import ask, chat, json_endpoint
from support.servers.scripted_http import Answer, Server, answering, served

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


async def test_a_chat_has_system_message_turns_and_prompt() -> None:
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


async def test_a_text_without_prompt_is_sent_unchanged() -> None:
    async with served(saying("ok")) as server:
        await ask(chat(url=server.url), question=["{curly}"])
        await ask(chat(url=server.url, api="completions"), question=["{curly}"])
    assert bodies(server) == [
        {"model": "org/model", "messages": [{"role": "user", "content": "{curly}"}]},
        {"model": "org/model", "prompt": "{curly}"},
    ]


async def test_a_conversation_is_sent_unchanged() -> None:
    conversation = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    async with served(saying("ok")) as server:
        model = chat(url=server.url, system="Hm.")
        await ask(model, question=[np.array(conversation, dtype=object)])
    (body,) = bodies(server)
    assert body["messages"] == [{"role": "system", "content": "Hm."}, *conversation]


async def test_pixels_are_sent_as_a_lossless_image() -> None:
    async with served(saying("a gradient")) as server:
        inputs = {"question": "text", "photo": "image"}
        model = chat(url=server.url, inputs=inputs, images=["photo"], prompt="{question}")
        for pixels in (PIXELS, PIXELS[..., :1], PIXELS[..., 0]):
            answers = await ask(model, question=["What?"], photo=[pixels])
            assert answers == ["a gradient"]
            image, text = bodies(server)[-1]["messages"][0]["content"]
            assert text == {"type": "text", "text": "What?"}
            assert image["type"] == "image_url"
            sent = pixels_of(image["image_url"]["url"])
            assert np.array_equal(sent, np.squeeze(pixels))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
async def test_an_encoded_image_is_sent_unchanged(kind: str) -> None:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, kind)
    async with served(saying("ok")) as server:
        model = chat(url=server.url, inputs={"photo": "p"}, images=["photo"], prompt="What?")
        await ask(model, photo=[buffer.getvalue()])
    url = bodies(server)[0]["messages"][0]["content"][0]["image_url"]["url"]
    head, _, content = url.partition(",")
    assert head == f"data:image/{kind.lower()};base64"
    assert base64.b64decode(content) == buffer.getvalue()


async def test_an_image_url_is_not_fetched() -> None:
    address = "https://pictures.example/a.png"
    async with served(saying("ok")) as server:
        model = chat(url=server.url, inputs={"photo": "p"}, images=["photo"], prompt="What?")
        await ask(model, photo=[address])
    assert bodies(server)[0]["messages"][0]["content"][0]["image_url"] == {"url": address}


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


async def test_a_sole_placeholder_keeps_the_type_of_the_value() -> None:
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
            (found,) = await ask(json_endpoint(url=server.url, **fields), value=["x"])
            assert (found, type(found)) == (value, type(value))


async def test_lists_of_numbers_keep_their_shape() -> None:
    async with served(answering(200, {"v": [[1, 2], [3, 4]]})) as server:
        model = json_endpoint(url=server.url, resultPath="v", resultType="numbers")
        (found,) = await ask(model, value=["x"])
    assert found.tolist() == [[1, 2], [3, 4]]
    assert found.dtype == np.float32


async def test_an_answer_of_another_type_fails_the_row() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"resultPath": "b"}, "the answer has no 'b': "),
        ({"resultPath": "a.7"}, "the answer has no 'a.7': "),
        ({"resultPath": "a.x"}, "the answer has no 'a.x': "),
        ({"resultPath": "a.0.x"}, "the answer has no 'a.0.x': "),
        ({"resultType": "number"}, "the answer is no number: "),
        ({"resultPath": "a.1", "resultType": "number"}, "the answer is no number: true"),
        ({"resultPath": "a.0", "resultType": "integer"}, 'the answer is no integer: "x"'),
        ({"resultPath": "a.0", "resultType": "boolean"}, "the answer is neither true nor false: "),
        ({"resultPath": "a", "resultType": "numbers"}, "the answer is no list of numbers of one"),
        ({"resultPath": "a.1", "resultType": "numbers"}, "the answer is no list of numbers of one"),
    ]
    async with served(answering(200, {"a": ["x", True]})) as server:
        for fields, words in cases:
            (error,) = await ask(json_endpoint(url=server.url, **fields), value=["x"])
            assert isinstance(error, Exception)
            assert str(error).startswith(words)
    assert len(server.requests) == len(cases), "no request is retried"


@pytest.mark.parametrize(
    ("model", "values", "words"),
    [
        (chat(), [None], "input 'question' is null"),
        (chat(prompt="{question}"), [None], "input 'question' is null"),
        (chat(), [7], "expected text or a list of messages, got int"),
        (chat(), [[{"content": "x"}]], "a message of a conversation has 'role' and 'content'"),
        (chat(api="embeddings"), [[1]], "expected text, got list"),
    ],
    ids=["null", "null in a prompt", "number", "no role", "list"],
)
async def test_a_value_that_cannot_be_sent_fails_its_row(
    model: dict[str, Any], values: list[Any], words: str
) -> None:
    async with served(saying("ok")) as server:
        wrong, right = await ask({**model, "url": server.url}, question=[*values, "fine"])
    assert str(wrong) == words
    assert not isinstance(right, Exception)
    assert len(server.requests) == 1


async def test_a_value_without_an_image_fails_its_row() -> None:
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


async def test_a_missing_key_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLM_KEY", raising=False)
    for value in (None, "", " \n"):
        if value is not None:
            monkeypatch.setenv("LLM_KEY", value)
        with pytest.raises(ModelLoad, match=r"environment variable LLM_KEY, .* is not set: export"):
            await ask(chat(apiKeyEnv="LLM_KEY"), question=["hello"])


HALF = r'"\ud800"'
DEEP = "[" * 100_000 + "]" * 100_000
ALMOST_DEEP = "[" * 900 + "]" * 900
ODD: dict[str, tuple[str, str, str]] = {
    "half a surrogate pair": ("text", HALF, "is no text of Unicode"),
    "half a surrogate pair in JSON": ("text", f'{{"a": [{HALF}]}}', "is no text of Unicode"),
    "half a surrogate pair as a number": ("number", HALF, "is no number"),
    "a long integer": ("integer", str(10**30), "does not fit 64 bits"),
    "a longer integer": ("integer", "1" + "0" * 5000, "cannot be read: ValueError"),
    "a long number": ("number", str(10**400), "does not fit 64 bits"),
    "long numbers": ("numbers", f"[{10**400}]", "is no list of numbers"),
    "deeply nested lists": ("text", DEEP, "cannot be read: RecursionError"),
    "nested numbers": ("numbers", ALMOST_DEEP, "the answer"),
}


def answering_odd(odd: str, good: str) -> Answer:
    """Answer the row 'odd' with `odd`, and other rows with `good`."""

    async def answer(request: web.Request) -> web.Response:
        asked = json.loads(await request.text())["instances"][0]
        return web.Response(body=f'{{"v": {odd if asked == "odd" else good}}}'.encode())

    return answer


@pytest.mark.parametrize(("kind", "odd", "words"), ODD.values(), ids=ODD)
async def test_a_malformed_value_fails_its_row_only(kind: str, odd: str, words: str) -> None:
    good = {"text": '"fine"', "numbers": "[1]"}.get(kind, "1")
    async with served(answering_odd(odd, good)) as server:
        model = json_endpoint(url=server.url, resultPath="v", resultType=kind)
        error, answer = await ask(model, value=["odd", "even"])
    assert isinstance(error, RequestFailed)
    assert words in str(error)
    assert not isinstance(answer, Exception)
    assert len(server.requests) == 2
    to_column([str(error)])  # the message can be stored as text


async def test_half_a_surrogate_pair_in_a_chat_fails_the_row() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"choices": [{"message": {"content": "\ud800"}}]})

    async with served(answer) as server:
        (error,) = await ask(chat(url=server.url), question=["odd"])
    assert str(error) == 'the answer is no text of Unicode: "?"'


@pytest.mark.parametrize("value", [-(1 << 63), (1 << 63) - 1])
async def test_integers_of_64_bits_are_read(value: int) -> None:
    async with served(answering_odd("", str(value))) as server:
        model = json_endpoint(url=server.url, resultPath="v", resultType="integer")
        assert await ask(model, value=["even"]) == [value]


async def test_a_too_long_answer_fails_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_ANSWER", 1 << 20)
    async with served(answering_odd(json.dumps("x" * (1 << 20)), json.dumps("x" * 1000))) as server:
        model = json_endpoint(url=server.url, resultPath="v")
        error, answer = await ask(model, value=["odd", "even"])
    assert str(error) == "the answer is longer than 1 MiB"
    assert answer == "x" * 1000
    assert len(server.requests) == 2


async def test_a_long_error_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_ANSWER", 1 << 20)

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=400, text="wrong " * (1 << 20))

    async with served(answer) as server:
        (error,) = await ask(json_endpoint(url=server.url), value=["x"])
    assert str(error).startswith("the endpoint answered 400: wrong wrong")
