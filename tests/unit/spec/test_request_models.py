"""Models whose rows are complete requests of the OpenAI API."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from support.documents.http_models import chat
from support.documents.minimal import Document, document
from support.documents.refusals import running
from support.documents.vllm_models import vllm_step

REQUESTS: dict[str, Any] = {"inputs": {"body": "text"}, "request": "body"}
URLS: dict[str, Any] = {"inputs": {"body": "text", "url": "u"}, "requestUrl": "url"}


def of_vllm(**fields: Any) -> Document:
    return document(steps=[vllm_step(**{"sampling": {}, **REQUESTS, **fields})])


def of_transformers(**fields: Any) -> Document:
    model = {"runtime": "transformers", "task": "text-generation", "source": "org/model"}
    return running({**model, "output": "answer", **REQUESTS, **fields})


def of_http(**fields: Any) -> Document:
    return running(chat(**{**REQUESTS, **fields}))


@pytest.mark.parametrize(
    "job",
    [
        of_vllm(),
        of_vllm(task="embed"),
        of_vllm(allow=["https://photos.example/"], chatTemplate="{{ messages }}"),
        of_http(),
        of_http(name=None),
        of_http(api="embeddings", **URLS),
        of_transformers(),
        of_transformers(task="feature-extraction", normalize=True, pooling="cls", **URLS),
    ],
    ids=[
        *("vllm", "vllm embed", "vllm pictures", "http", "http without a name", "http embeddings"),
        *("transformers", "transformers embeddings"),
    ],
)
def test_output_of_requests_is_text(job: Document) -> None:
    model = parse(job).spec.steps[0].model
    assert model is not None
    assert (model.output_type, model.extra_outputs, model.needs_finite) == ("string", {}, False)
