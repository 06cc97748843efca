"""Models behind HTTP endpoints: URLs, templates, fields of each API, and API keys."""

from __future__ import annotations

import pytest

from batchinference.spec.models import HttpModel
from support.documents.http_models import chat, json_endpoint
from support.documents.minimal import Document
from support.documents.refusals import short


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


def test_summary_names_the_model() -> None:
    summary = HttpModel.model_validate(chat()).facts.summary
    assert summary == "http, org/model, https://llm.example/v1"
