"""Models whose rows are complete requests of the OpenAI API."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import SpecError, parse
from plugins.messages import Messages
from support.documents.http_models import chat, json_endpoint
from support.documents.minimal import Document, document
from support.documents.refusals import running
from support.documents.vllm_models import vllm_step

REQUESTS: dict[str, Any] = {"inputs": {"body": "text"}, "request": "body"}
URLS: dict[str, Any] = {"inputs": {"body": "text", "url": "u"}, "requestUrl": "url"}


def of_vllm(**fields: Any) -> Document:
    return document(steps=[vllm_step(**{"sampling": {}, **REQUESTS, **fields})])


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
    ],
)
def test_output_of_requests_is_text(job: Document) -> None:
    model = parse(job).spec.steps[0].model
    assert model is not None
    assert (model.output_type, model.other_outputs, model.needs_finite) == ("string", {}, False)


REFUSED: dict[str, Document] = {
    "prompt": of_vllm(prompt="{body}"),
    "system": of_vllm(system="Hm."),
    "messages": of_vllm(messages=[{"role": "user", "content": "a"}]),
    "images": of_vllm(images=["body"]),
    "sampling": of_vllm(sampling={"max_tokens": 3}),
    "details": of_vllm(details="about"),
    "schema": of_vllm(schema={"jsonSchema": {"type": "integer"}}),
    "tooLong": of_vllm(tooLong="truncate"),
    "task": of_vllm(task="classify"),
    "unknown input": of_vllm(request="other"),
    "unused input": of_vllm(inputs={"body": "text", "spare": "n"}),
    "only a URL": of_vllm(request=None, requestUrl="body"),
    "tools of a prompt": document(steps=[vllm_step(toolCallParser="hermes")]),
    "prompt for http": of_http(prompt="{body}"),
    "sampling for http": of_http(sampling={"temperature": 0}),
    "cut texts": of_http(api="embeddings", maxInputTokens=10),
    "api json": running(json_endpoint(**REQUESTS, body={"a": "{body}"})),
    "unknown URL": of_http(requestUrl="url"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_field_that_does_not_fit_a_request_is_refused(case: str, messages: Messages) -> None:
    with messages.raises(SpecError):
        parse(REFUSED[case])
