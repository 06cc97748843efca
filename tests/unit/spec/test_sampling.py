"""Sampling parameters are checked before a model is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
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
    ("model", "message"),
    [
        (asking(max_new_tokens=8), "no parameter 'max_new_tokens'. Use max_tokens"),
        (asking(max_tokns=8), "no parameter 'max_tokns'; did you mean 'max_tokens'?"),
        (asking(guided_choice=["a"]), "Use structured_outputs: {choice: ...}"),
        (asking(response_format={"type": "json_object"}), "Use structured_outputs: {json: ...}"),
        (asking(truncate_prompt_tokens=8), "Use the model's field tooLong"),
        (asking(xyzzy=8), "no parameter 'xyzzy'. Use one of temperature, "),
        (asking(_eos_token_id=8), "no parameter '_eos_token_id'"),
        (asking(best_of=2), "no parameter 'best_of'. Remove it"),
        (asking(num_return_sequences=2), "no parameter 'num_return_sequences'. Use n"),
        (asking(n="3"), "sampling.n: expected a whole number, got a text"),
        (asking(logprobs=0), "sampling.logprobs: the output is a text"),
        (asking(prompt_logprobs=2), "sampling.prompt_logprobs: the output is a text"),
        (asking(detokenize=False), "sampling.detokenize: without it"),
        (asking(logit_bias={"5": 1}), "sampling.logit_bias: vLLM takes values"),
        (asking(max_tokens="8"), "sampling.max_tokens: expected a whole number, got a text"),
        (asking(stop="{m}", n="{m}"), "only a number can be an input of the row"),
        (asking(max_tokens="{m}{m}"), "only a number can be an input of the row"),
        (asking(max_tokens=True), "sampling.max_tokens: expected a whole number, got a boolean"),
        (asking(temperature=None), "sampling.temperature: expected a number, got null"),
        (asking(stop=[1]), "sampling.stop: expected a text or a list of texts, got a list"),
        (asking(structured_outputs={}), "expected one of regex, grammar, structural_tag, json"),
        (asking(structured_outputs={"regex": "a", "choice": ["a"]}), "got 2 of them"),
        (asking(structured_outputs={"jsn": {}}), "no constraint 'jsn'; did you mean 'json'?"),
        (asking(structured_outputs={"choice": "a"}), "structured_outputs.choice: expected a list"),
        (asking(structured_outputs={"json": {}, "disable_any_whitespace": True}),
         "Set it in engine.structured_outputs_config"),
        (embedding(max_tokens=8), "no parameter 'max_tokens' for task embed. Remove it"),
        (embedding(normalize=True), "Use use_activation"),
        (embedding(best_of=2), "no parameter 'best_of'. Remove it"),
        (embedding(pooling="mean"), "Use one of dimensions, use_activation"),
        (embedding(max_tokens="{m}"), "no parameter 'max_tokens' for task embed. Remove it"),
        (vllm(task="classify", sampling={"dimensions": 8}), "no parameter 'dimensions'. Use one"),
        (generation(return_dict_in_generate=True), "sampling.return_dict_in_generate: "),
        (generation(output_scores=True), "sampling.output_scores: the output is a text"),
        (endpoint(n=2), "sampling.n: a row has one text"),
        (endpoint(logprobs=True), "sampling.logprobs: the output is a text"),
        (endpoint(stream=True), "sampling.stream: an answer is read as a whole"),
        (chat(api="embeddings", sampling={"encoding_format": "base64"}),
         "sampling.encoding_format: an embedding is read as numbers"),
    ],
    ids=short,
)  # fmt: skip
def test_parameters_are_refused(model: Document, message: str) -> None:
    assert message in refused(document(steps=[step_of(model)]))
