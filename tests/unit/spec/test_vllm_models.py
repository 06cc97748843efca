"""Models for vLLM: prompts, engine arguments, adapters, and the number of GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from support.documents.http_models import chat
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
    ("fields", "message"),
    [
        ({"source": None}, ".model.source: expected a text, got null"),
        ({"task": "rerank"}, ".model.task: 'rerank' is not one of generate, embed, classify"),
        ({"task": "score"}, ".model: task score takes inputs: {query: COLUMN, document: COLUMN}"),
        (pair(prompt="{query}"), ".model: task score takes a query and a document: remove"),
        (pair(chat=True), ".model: task score takes a query and a document: remove"),
        (pair(tooLong="truncate"), ".model: tooLong: the pairs of task score are not cut"),
        ({"topK": 2}, ".model: topK is for task classify only"),
        ({"task": "embed", "details": "about"}, ".model: details is for task generate only"),
        ({"details": "answer"}, ".model: details: this column is the output"),
        ({"sampling": {"logprobs": 2}}, ".model: sampling.logprobs: the output is a text, and"),
        ({"sampling": {"max_tokens": "{limit}"}}, ".model: 'limit' is not an input. The inputs"),
        ({"tooLong": "windows"}, ".model: tooLong windows is for the runtimes transformers"),
        ({"tooLong": "truncate", "images": ["question"], "prompt": "{question}"},
         ".model: tooLong: prompts with images are not cut"),
        ({"prompt": "{text}"}, ".model: 'text' is not an input. The inputs are question"),
        ({"images": ["photo"]}, ".model: 'photo' is not an input. The inputs are question"),
        ({"adapter": "style"}, ".model: 'style' is not an input. The inputs are question"),
        ({"images": ["question"], "messages": [{"role": "user", "content": "{question}"}]},
         ".model: '{question}' is an image, and 'system' and 'messages' hold only text"),
        ({"prompt": "Hello"}, ".model: input 'question' is not used"),
        ({"adapter": "question"},
         ".model: without a 'prompt' one input is sent as it is; here none is left"),
        ({"loraPath": "/a"}, ".model: 'loraPath' needs an 'adapter': the input that names each"),
        ({"prompt": "Hi", "adapter": "question", "loraPath": "adapters"},
         ".model: loraPath: expected an absolute path or an address, got 'adapters'"),
        ({"allow": ["https://a/"]}, ".model: 'allow' needs 'images': it is about their addresses"),
        ({"allow": ["/data/"]}, ".model.allow[0]: expected the beginning of an address"),
        ({"loraAdapters": ["a/b"]}, ".model: 'loraAdapters' needs an 'adapter': the input that"),
        (with_adapter(), ".model: 'adapter' needs 'loraPath', or 'loraAdapters' with the ids of"),
        (with_adapter(loraAdapters=["a/b", "../c"]),
         ".model: loraAdapters: '../c' is no id of the Hub, and there is no 'loraPath'"),
        (with_adapter(loraAdapters=["s3://a/b"]), ".model: loraAdapters: 's3://a/b' is no id of"),
        ({"chat": False, "system": "Hm."}, ".model: 'system' is for a chat: set 'chat' to true"),
        ({"task": "embed", "chatTemplate": "{{ messages }}"},
         ".model: 'chatTemplate' is for a chat: set 'chat' to true"),
        ({"engine": {"tensor_parallel_size": 2}},
         ".model: engine: 'tensor_parallel_size' has a field of its own: parallelism.tensor"),
        ({"engine": {"revision": "main"}},
         ".model: engine: 'revision' has a field of its own: revision"),
        ({"source": "s3://models/llama", "revision": "main"},
         ".model: 'revision' is for models of the Hub, and 's3://models/llama' is none"),
        ({"engine": {"model": "b"}}, ".model: engine: 'model' has a field of its own: source"),
        ({"parallelism": {"data": 2}}, ".model.parallelism.data: unknown field. Use one of tensor"),
        ({"maxConcurrentBatches": 0}, ".model.maxConcurrentBatches: expected at least 1"),
    ],
    ids=short,
)  # fmt: skip
def test_vllm_model_is_refused(fields: dict[str, Any], message: str) -> None:
    assert refusal_of(vllm_step(**fields)).startswith(message)


@pytest.mark.parametrize(
    ("parallelism", "gpus"),
    [({}, 1), ({"tensor": 4}, 4), ({"pipeline": 2}, 2), ({"tensor": 2, "pipeline": 3}, 6)],
    ids=str,
)
def test_vllm_replica_needs_as_many_gpus_as_its_parallelism(
    parallelism: dict[str, int], gpus: int
) -> None:
    assert parse(document(steps=[vllm_step(gpu=gpus, parallelism=parallelism)]))
    for other in {1, gpus + 1} - {gpus}:
        assert refusal_of(vllm_step(gpu=other, parallelism=parallelism)).startswith(
            f": vllm takes parallelism.tensor x parallelism.pipeline GPUs, here {gpus}: set "
            f"resources.gpu to {gpus}, not {other}"
        )


def test_vllm_without_gpus_is_for_its_build_for_cpus() -> None:
    assert parse(document(steps=[vllm_step(gpu=0)]))
    assert refusal_of({**vllm_step(), "resources": {"cpu": 2}}).endswith(
        "set resources.gpu to 1, not 0, or write gpu: 0 for vLLM's build for CPUs"
    )
    assert refusal_of(vllm_step(gpu=0, parallelism={"pipeline": 2})).endswith("to 2, not 0")


def test_vllm_batch_size_or_device_is_refused() -> None:
    step = vllm_step()
    assert refusal_of({**step, "batchSize": "auto"}) == (
        ": vllm makes its batches itself: batchSize is a number"
    )
    assert refusal_of({**step, "resources": {"gpu": 1, "custom": {"NPU": 1}}}) == (
        ": the runtime vllm supports only GPUs: remove resources.custom"
    )


@pytest.mark.parametrize("resources", [{"gpu": 1}, {"custom": {"NPU": 1}}], ids=str)
def test_http_endpoint_with_devices_is_refused(resources: dict[str, Any]) -> None:
    assert refusal_of(model_step(model=chat(), resources=resources)) == (
        ": the endpoint computes elsewhere: leave out resources.gpu and custom"
    )


def test_vllm_token_in_engine_arguments_is_not_shown() -> None:
    assert "hf_secret1" not in refusal_of(vllm_step(engine={"hf_token": {"hf_secret1"}}))
