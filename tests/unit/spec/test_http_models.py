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
