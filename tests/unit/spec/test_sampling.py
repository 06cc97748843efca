"""Sampling parameters are checked before a model is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from plugins.messages import Messages
from support.documents.http_models import chat
from support.documents.minimal import Document, document, model_step
from support.documents.refusals import refused, short
from support.documents.vllm_models import vllm

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, "b"]}}}


def step_of(model: Document) -> Document:
    return model_step(model=model, resources={"gpu": int(model["runtime"] == "vllm")})


def generation(**sampling: Any) -> Document:
    fields = {"runtime": "transformers", "task": "text-generation", "source": "gpt2"}
    return {**fields, "inputs": {"text": "text"}, "output": "answer", "sampling": sampling}


def embedding(**sampling: Any) -> Document:
    return vllm(task="embed", sampling=sampling)


def asking(**sampling: Any) -> Document:
    return vllm(sampling=sampling)


def endpoint(**sampling: Any) -> Document:
    return chat(sampling=sampling)


@pytest.mark.parametrize(
    "model",
    [
        asking(max_tokens=8, temperature=0, top_p=0.5, seed=None, stop="a", stop_token_ids=[1]),
        asking(n=1, logprobs=None, detokenize=True, stop=["a", "b"], ignore_eos=True),
        asking(n=3),
        vllm(sampling={"logprobs": 0}, details="about"),
        asking(structured_outputs={"choice": ["yes", "no"]}),
        asking(structured_outputs={"json": SCHEMA}),
        asking(structured_outputs={"json": "{}"}),
        embedding(dimensions=64, use_activation=None),
        generation(num_return_sequences=3, do_sample=True, return_dict_in_generate=False),
        endpoint(n=1, logprobs=False, stream=False, best_of=2),
    ],
    ids=short,
)
def test_parameters_are_accepted(model: Document) -> None:
    assert parse(document(steps=[step_of(model)]))


@pytest.mark.parametrize(
    "model",
    [
        asking(max_new_tokens=8),
        asking(max_tokns=8),
        asking(guided_choice=["a"]),
        asking(response_format={"type": "json_object"}),
        asking(truncate_prompt_tokens=8),
        asking(xyzzy=8),
        asking(_eos_token_id=8),
        asking(best_of=2),
        asking(num_return_sequences=2),
        asking(n="3"),
        asking(logprobs=0),
        asking(prompt_logprobs=2),
        asking(detokenize=False),
        asking(logit_bias={"5": 1}),
        asking(max_tokens="8"),
        asking(stop="{m}", n="{m}"),
        asking(max_tokens="{m}{m}"),
        asking(max_tokens=True),
        asking(temperature=None),
        asking(stop=[1]),
        asking(structured_outputs={}),
        asking(structured_outputs={"regex": "a", "choice": ["a"]}),
        asking(structured_outputs={"jsn": {}}),
        asking(structured_outputs={"choice": "a"}),
        asking(structured_outputs={"json": {}, "disable_any_whitespace": True}),
        embedding(max_tokens=8),
        embedding(normalize=True),
        embedding(best_of=2),
        embedding(pooling="mean"),
        embedding(max_tokens="{m}"),
        vllm(task="classify", sampling={"dimensions": 8}),
        generation(return_dict_in_generate=True),
        generation(output_scores=True),
        endpoint(n=2),
        endpoint(logprobs=True),
        endpoint(stream=True),
        chat(api="embeddings", sampling={"encoding_format": "base64"}),
    ],
    ids=short,
)
def test_parameters_are_refused(model: Document, messages: Messages) -> None:
    messages.check(refused(document(steps=[step_of(model)])))
