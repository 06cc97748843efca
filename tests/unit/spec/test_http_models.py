"""Models behind HTTP endpoints: URLs, templates, fields of each API, and API keys."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from batchinference.spec.models import HttpModel
from plugins.messages import Messages
from support.documents.http_models import chat, json_endpoint
from support.documents.minimal import Document
from support.documents.refusals import refused, running, short

MODEL = "spec.steps[0].model"
PICTURE = {"inputs": {"text": "text", "photo": "image"}, "images": ["photo"]}


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
    "model",
    [
        chat(prompt="{text}"),
        chat(system="{text}"),
        chat(images=["photo"]),
        chat(**PICTURE, system="{photo}", prompt="{text}"),
        chat(prompt="Hello"),
        json_endpoint(body={"a": 1}),
        json_endpoint(body={"a": "{b}"}),
        chat(inputs={"a": "text", "b": "text"}),
        chat(inputs={"photo": "image"}, images=["photo"]),
    ],
    ids=short,
)
def test_template_that_does_not_match_the_inputs_is_refused(
    model: Document, messages: Messages
) -> None:
    messages.check(refusal_of(model))


@pytest.mark.parametrize("text", ["{", "}", "{}", "{question!r}", "{question:>9}", "{question[x]}"])
@pytest.mark.parametrize("field", ["prompt", "system"])
def test_invalid_template_is_refused(field: str, text: str, messages: Messages) -> None:
    messages.check(refusal_of(chat(**{field: text})))


@pytest.mark.parametrize(
    "model",
    [
        {name: value for name, value in chat().items() if name != "name"},
        json_endpoint(body={}),
        chat(maxInputTokens=9),
        chat(api="embeddings", tooLong="fail"),
        chat(api="embeddings", tooLong="windows", maxInputTokens=9),
        chat(nullInput="compute"),
        json_endpoint(name="m"),
        json_endpoint(prompt="{value}"),
        chat(body={"a": "{question}"}),
        chat(resultType="number"),
        chat(resultPath="a"),
        chat(api="embeddings", system="Hm."),
        chat(api="embeddings", details="about"),
        chat(api="completions", **PICTURE),
        chat(url="https://a/v1/chat/completions"),
        chat(api="rerank"),
        chat(url="llm:8000"),
        chat(concurrency=0),
    ],
    ids=short,
)
def test_field_of_another_api_is_refused(model: Document, messages: Messages) -> None:
    messages.check(refusal_of(model))


@pytest.mark.parametrize(
    "model",
    [
        chat(url="https://user:sk-secret1@llm.example/v1"),
        json_endpoint(url="https://a/b?api-key=sk-secret1"),
        json_endpoint(url="https://a/b?key=sk-secret1"),
        *(
            json_endpoint(url=f"https://a/b?all=1&{name}=sk-secret1")
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
        json_endpoint(body={"a": "{value}", "apiKey": "sk-secret1"}),
        json_endpoint(body={"a": ["{value}", {"password": "sk-secret1"}]}),
        chat(sampling={"extra": {"Authorization": "sk-secret1"}}),
    ],
    ids=short,
)
def test_api_key_in_the_file_is_refused_and_not_shown(model: Document, messages: Messages) -> None:
    message = refusal_of(model)
    messages.check(message)
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
