"""Models behind HTTP endpoints: URLs, templates, fields of each API, and API keys."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from batchinference.spec.models import HttpModel
from support.documents.http_models import chat, json_endpoint
from support.documents.minimal import Document
from support.documents.refusals import refused, running, short

MODEL = "spec.steps[0].model"
PICTURE = {"inputs": {"text": "text", "photo": "image"}, "images": ["photo"]}
KEY = (
    ": a key does not belong in the file: store it in a Secret, pass it in cluster.env and "
    "name the variable in apiKeyEnv or headersFrom"
)


def refusal_of(model: Document) -> str:
    """Return why a model is refused, without the path of the model."""
    message = refused(running(model))
    assert message.startswith(MODEL)
    return message.removeprefix(MODEL)


@pytest.mark.parametrize(
    ("model", "endpoint"),
    [
        (chat(), "https://llm.example/v1/chat/completions"),
        (chat(url="http://a:8000/v1/"), "http://a:8000/v1/chat/completions"),
        (chat(api="completions"), "https://llm.example/v1/completions"),
        (chat(api="embeddings"), "https://llm.example/v1/embeddings"),
        (json_endpoint(url="http://a/predict?all=1"), "http://a/predict?all=1"),
    ],
    ids=short,
)
def test_endpoint_follows_from_url_and_api(model: Document, endpoint: str) -> None:
    assert HttpModel.model_validate(model).endpoint == endpoint


@pytest.mark.parametrize(
    "model",
    [
        chat(),
        chat(prompt="{question}"),
        chat(prompt="{{}} {question} {question}"),
        chat(system="Answer {question}.", prompt="Now."),
        chat(**PICTURE),
        chat(**PICTURE, prompt="What says {text} of this?"),
        chat(inputs={"photo": "image"}, images=["photo"], prompt="What is this?"),
        chat(**PICTURE, prompt="{text} {photo}"),
        chat(api="embeddings", prompt="query: {question}"),
        json_endpoint(body={"a": [{"b": "{value}"}], "c": 1, "d": "{{value}}"}),
        json_endpoint(inputs={"photo": "image"}, images=["photo"], body={"image": "{photo}"}),
    ],
    ids=lambda model: short(model.get("prompt", model.get("body", "no prompt"))),
)
def test_template_that_uses_every_input_is_accepted(model: Document) -> None:
    assert parse(running(model))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (chat(prompt="{text}"), ": 'text' is not an input. The inputs are question"),
        (chat(system="{text}"), ": 'text' is not an input. The inputs are question"),
        (chat(images=["photo"]), ": 'photo' is not an input. The inputs are question"),
        (chat(**PICTURE, system="{photo}", prompt="{text}"),
         ": '{photo}' is an image, and 'system' and 'messages' hold only text. Put the place into "
         "'prompt'"),
        (chat(prompt="Hello"), ": input 'question' is not used"),
        (json_endpoint(body={"a": 1}), ": input 'value' is not used"),
        (json_endpoint(body={"a": "{b}"}), ": 'b' is not an input. The inputs are value"),
        (chat(inputs={"a": "text", "b": "text"}),
         ": without a 'prompt' one input is sent as it is; here a, b"),
        (chat(inputs={"photo": "image"}, images=["photo"]),
         ": without a 'prompt' one input is sent as it is; here none is left"),
    ],
    ids=short,
)  # fmt: skip
def test_template_that_does_not_match_the_inputs_is_refused(model: Document, message: str) -> None:
    assert refusal_of(model) == message


@pytest.mark.parametrize("text", ["{", "}", "{}", "{question!r}", "{question:>9}", "{question[0]}"])
@pytest.mark.parametrize("field", ["prompt", "system"])
def test_invalid_template_is_refused(field: str, text: str) -> None:
    message = refusal_of(chat(**{field: text}))
    assert message.startswith(f".{field}: ")
    assert ": write {name} for an input, and double a literal brace" in message


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {name: value for name, value in chat().items() if name != "name"},
            ": chat needs a 'name': the model as the endpoint names it",
        ),
        (json_endpoint(body={}), ": json needs a 'body'"),
        (chat(maxInputTokens=9), ": 'maxInputTokens' is for embeddings, not for chat"),
        (chat(api="embeddings", tooLong="fail"), ": 'tooLong' needs 'maxInputTokens'"),
        (
            chat(api="embeddings", tooLong="windows", maxInputTokens=9),
            ": tooLong: the endpoint cuts the text or not",
        ),
        (chat(nullInput="compute"), ": nullInput compute is for api json only"),
        (json_endpoint(name="m"), ": 'name' is for chat, completions, embeddings, not for json"),
        (json_endpoint(prompt="{value}"), ": 'prompt' is for chat, completions, embeddings, not"),
        (chat(body={"a": "{question}"}), ": 'body' is for json, not for chat"),
        (chat(resultType="number"), ": 'resultType' is for json, not for chat"),
        (chat(resultPath="a"), ": 'resultPath' is for json, not for chat"),
        (chat(api="embeddings", system="Hm."), ": 'system' is for chat, not for embeddings"),
        (chat(api="completions", **PICTURE), ": 'images' is for chat, json, not for completions"),
        (chat(url="https://a/v1/chat/completions"), ": 'url' is the base of the API: leave out"),
        (chat(api="rerank"), ".api: 'rerank' is not one of chat, completions, embeddings, json"),
        (chat(url="llm:8000"), ".url: expected an address that begins with http:// or https://"),
        (chat(concurrency=0), ".concurrency: expected at least 1, got 0"),
    ],
    ids=short,
)
def test_field_of_another_api_is_refused(model: Document, message: str) -> None:
    assert refusal_of(model).startswith(message)


@pytest.mark.parametrize(
    ("model", "place"),
    [
        (chat(url="https://user:sk-secret1@llm.example/v1"), ".url"),
        (json_endpoint(url="https://a/b?api-key=sk-secret1"), ".url"),
        (json_endpoint(url="https://a/b?key=sk-secret1"), ".url"),
        *(
            (json_endpoint(url=f"https://a/b?all=1&{name}=sk-secret1"), ".url")
            for name in (
                "subscription-key",
                "code",
                "sig",
                "token",
                "X-Amz-Signature",
                "X-Amz-Security-Token",
                "client_secret",
                "password",
            )
        ),
        (json_endpoint(body={"a": "{value}", "apiKey": "sk-secret1"}), ""),
        (json_endpoint(body={"a": ["{value}", {"password": "sk-secret1"}]}), ""),
        (chat(sampling={"extra": {"Authorization": "sk-secret1"}}), ""),
    ],
    ids=short,
)
def test_api_key_in_the_file_is_refused_and_not_shown(model: Document, place: str) -> None:
    message = refusal_of(model)
    assert message.startswith(place + KEY)
    assert "sk-secret1" not in message


@pytest.mark.parametrize(
    "fields",
    [
        {"apiKeyEnv": "sk-secret1"},
        {"apiKeyEnv": "hf_secret1"},
        {"headersFrom": {"X-Key": "sk-secret1"}},
        {"headersFrom": {"X Key": "sk-secret1"}},
        {"apiKey": "sk-secret1"},
        {"headers": {"Authorization": "Bearer sk-secret1"}},
        {"url": "sk-secret1"},
        {"sampling": {"max_tokens": {"sk-secret1"}}},
        {"body": "sk-secret1"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_api_key_instead_of_a_variable_name_is_not_shown(fields: dict[str, Any]) -> None:
    assert "secret1" not in refusal_of(chat(**fields))


def test_field_name_that_resembles_a_key_is_accepted() -> None:
    for name in ("max_tokens", "min_tokens", "keyword", "token_type_ids", "signal"):
        assert parse(running(chat(sampling={name: 1}))), name
        assert parse(running(json_endpoint(body={name: "{value}"}))), name
