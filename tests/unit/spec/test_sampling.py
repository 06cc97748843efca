"""Sampling parameters are checked before a model is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from support.documents.http_models import chat
from support.documents.minimal import Document, document, model_step
from support.documents.refusals import short
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
