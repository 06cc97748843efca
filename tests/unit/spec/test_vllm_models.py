"""Models for vLLM: prompts, engine arguments, adapters, and the number of GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from plugins.messages import Messages
from support.documents.minimal import Document, document, model_step
from support.documents.refusals import refused, short
from support.documents.vllm_models import full_model, vllm, vllm_step

STEP = "spec.steps[0]"


def refusal_of(step: Document) -> str:
    message = refused(document(steps=[step]))
    assert message.startswith(STEP)
    return message.removeprefix(STEP)


def pair(**fields: Any) -> Document:
    inputs = {"query": "text", "document": "page"}
    return vllm(task="score", **{"inputs": inputs, **fields})


def with_adapter(**fields: Any) -> Document:
    return vllm(inputs={"question": "text", "style": "class"}, adapter="style", **fields)


@pytest.mark.parametrize(
    "model",
    [
        vllm(),
        vllm(prompt="{question}"),
        vllm(chat=False, prompt="Q: {question} A:"),
        vllm(revision="5f1c"),
        vllm(task="embed"),
        vllm(task="embed", chat=True, system="Hm.", sampling={"dimensions": 64}),
        vllm(engine={"dtype": "bfloat16", "hf_overrides": {"a": [1]}}),
        vllm(task="classify", topK=3, sampling={"use_activation": False}),
        pair(),
        vllm(details="about", sampling={"logprobs": 2, "n": 3}),
        vllm(inputs={"question": "text", "limit": "most"}, sampling={"max_tokens": "{limit}"}),
        with_adapter(loraAdapters=["org/poem", "ode"]),
        with_adapter(loraPath="/adapters"),
        full_model(),
    ],
    ids=short,
)
def test_vllm_model_is_accepted(model: Document) -> None:
    assert parse(document(steps=[model_step(model=model, resources={"gpu": 1})]))


@pytest.mark.parametrize(
    ("parallelism", "gpus"),
    [({}, 1), ({"tensor": 4}, 4), ({"pipeline": 2}, 2), ({"tensor": 2, "pipeline": 3}, 6)],
    ids=str,
)
def test_vllm_replica_needs_as_many_gpus_as_its_parallelism(
    parallelism: dict[str, int], gpus: int, messages: Messages
) -> None:
    assert parse(document(steps=[vllm_step(gpu=gpus, parallelism=parallelism)]))
    for other in {1, gpus + 1} - {gpus}:
        messages.check(refusal_of(vllm_step(gpu=other, parallelism=parallelism)))


def test_vllm_without_gpus_is_for_its_build_for_cpus(messages: Messages) -> None:
    assert parse(document(steps=[vllm_step(gpu=0)]))
    messages.check(refusal_of({**vllm_step(), "resources": {"cpu": 2}}))
    assert refusal_of(vllm_step(gpu=0, parallelism={"pipeline": 2})).endswith("to 2, not 0")
