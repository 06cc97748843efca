"""Models of transformers: the inputs and fields of each task."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from batchinference.spec import parse
from batchinference.spec.models.transformers_tasks import FIELDS, GENERATION, INPUTS, Task
from support.documents.minimal import Document
from support.documents.refusals import refused, running, short

MODEL = "spec.steps[0].model"
TASKS = get_args(Task)
REQUIRED: dict[str, Document] = {
    "image-text-to-text": {"inputs": {"photo": "image", "text": "text"}, "images": ["photo"]},
    **{
        f"zero-shot-{kind}": {"candidateLabels": ["cat", "dog"]}
        for kind in (
            *("classification", "image-classification", "audio-classification"),
            "object-detection",
        )
    },
}
"""Required fields of each task, in addition to its inputs."""
FIELD_VALUES: Document = {
    "pooling": "mean",
    "normalize": False,
    "top_k": 3,
    "candidate_labels": ["cat"],
    "prompt": "say {text}",
    "return_full_text": True,
    "system": "Be brief.",
    "messages": [{"role": "user", "content": "Hello"}],
    "sampling": {"max_new_tokens": 5},
    "images": ["text"],
    "max_tokens_per_batch": 1000,
    "too_long": "fail",
    "window_overlap": 8,
}
ALIASES = {
    "top_k": "topK",
    "return_full_text": "returnFullText",
    "candidate_labels": "candidateLabels",
    "max_tokens_per_batch": "maxTokensPerBatch",
    "too_long": "tooLong",
    "window_overlap": "windowOverlap",
}


def model(task: str, **fields: Any) -> Document:
    """Return a model with the fields that its task requires. `fields` override them."""
    inputs = {INPUTS[task][0] if task in INPUTS else "text": "mine"}
    return {
        **{"runtime": "transformers", "task": task, "source": "org/model", "inputs": inputs},
        **{"output": "out", **REQUIRED.get(task, {}), **fields},
    }


def refusal_of(task: str, **fields: Any) -> str:
    message = refused(running(model(task, **fields)))
    assert message.startswith(f"{MODEL}: ")
    return message.removeprefix(f"{MODEL}: ")


def test_task_is_accepted_with_its_required_fields() -> None:
    for task in TASKS:
        assert parse(running(model(task))), task


def test_tasks_have_inputs_or_generate() -> None:
    assert set(INPUTS) | set(GENERATION) == set(TASKS)


@pytest.mark.parametrize("task", INPUTS)
def test_task_accepts_its_own_inputs_only(task: str) -> None:
    required, *optional = INPUTS[task]
    every = dict.fromkeys(INPUTS[task], "mine")
    for inputs in ({required: "mine"}, every):
        assert parse(running(model(task, inputs=inputs)))
    expected = f"task '{task}' takes inputs: {{{required}: COLUMN}}"
    if optional:
        expected += f", and may take {optional[0]}"
    for inputs in ({**every, "other": "mine"}, {"other": "mine"}, dict.fromkeys(optional, "a")):
        assert not inputs or refusal_of(task, inputs=inputs) == expected


def test_field_of_another_task_is_refused() -> None:
    offenders = []
    others = [(task, field) for task in TASKS for field in FIELDS if task not in FIELDS[field]]
    for task, field in others:
        alias = ALIASES.get(field, field)
        message = refusal_of(task, **{alias: FIELD_VALUES[field]})
        if not (message.startswith(f"'{alias}' is for ") and message.endswith(f" for '{task}'")):
            offenders.append(message)
    assert len(others) > 100
    assert offenders == []


@pytest.mark.parametrize(
    ("task", "fields", "message"),
    [
        ("text-classification", {"pooling": "cls"},
         "'pooling' is for the feature-extraction tasks, not for 'text-classification'"),
        ("feature-extraction", {"topK": 2},
         "'topK' is for the classification tasks, not for 'feature-extraction'"),
        ("object-detection", {"windowOverlap": 8},
         "'windowOverlap' is for feature-extraction, text-classification, token-classification "
         "and zero-shot-classification, not for 'object-detection'"),
        ("zero-shot-classification", {"candidateLabels": []},
         "task 'zero-shot-classification' needs 'candidateLabels'"),
        ("image-text-to-text", {"images": [], "inputs": {"text": "text"}},
         "task 'image-text-to-text' needs 'images': which of the inputs are images"),
        ("image-text-to-text", {"images": ["picture"]},
         "'picture' is not an input. The inputs are photo, text"),
        ("image-text-to-text", {"system": "{photo}", "prompt": "{text}"},
         "'{photo}' is an image, and 'system' and 'messages' hold only text. Put the place into "
         "'prompt'"),
        ("image-text-to-text",
         {"inputs": {"photo": "image", "text": "image"}, "prompt": "{text}"},
         "'{text}' is an image. Add 'text' to 'images'"),
        ("image-text-to-text", {"inputs": {"photo": "image"}, "system": "Be brief."},
         "without a 'prompt' one input is sent as it is; here none is left"),
        ("text-generation", {"prompt": "say {word}"},
         "'word' is not an input. The inputs are text"),
        ("text-generation", {"prompt": "say nothing"}, "input 'text' is not used"),
        ("text-generation", {"inputs": {"a": "a", "b": "b"}},
         "without a 'prompt' one input is sent as it is; here a, b"),
        ("text-generation", {"sampling": {"seed": 1, "num_beams": 4}},
         "sampling: 'seed' cannot be used with 'num_beams': remove one"),
        ("fill-mask", {"source": "s3://models/bert", "revision": "main"},
         "'revision' is for models of the Hub, and 's3://models/bert' is none"),
        ("fill-mask", {"source": "./bert", "revision": "main"},
         "'revision' is for models of the Hub, and './bert' is none"),
        ("text-generation", {"tooLong": "windows"},
         "tooLong windows is for task feature-extraction, text-classification, "
         "token-classification, zero-shot-classification"),
        ("feature-extraction", {"tooLong": "fail", "windowOverlap": 8},
         "windowOverlap is for tooLong windows only"),
        ("text-generation", {"attention": "flash_attention_2", "dtype": "float32"},
         "attention flash_attention_2 computes with float16 or bfloat16: set 'dtype' to one of "
         "them"),
    ],
    ids=short,
)  # fmt: skip
def test_conflicting_fields_are_refused(task: str, fields: Document, message: str) -> None:
    assert refusal_of(task, **fields) == message


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "say {text}", "system": "to {who}", "inputs": {"text": "t", "who": "w"}},
        {"inputs": {"chat": "messages"}},
        {"sampling": {"seed": 1, "num_beams": 1, "do_sample": True}},
        {"attention": "flash_attention_2", "dtype": "bfloat16"},
        {"revision": "5f1c", "source": "org/model"},
        # the defaults that the API server adds
        {"candidateLabels": [], "messages": [], "images": [], "sampling": {}},
    ],
    ids=short,
)
def test_compatible_fields_are_accepted(fields: Document) -> None:
    assert parse(running(model("text-generation", **fields)))


@pytest.mark.parametrize(
    "fields",
    [{"prompt": "{text}: what is in {photo}?"}, {"inputs": {"photo": "image"}}],
    ids=["image in the prompt", "image without a prompt"],
)
def test_compatible_image_fields_are_accepted(fields: Document) -> None:
    assert parse(running(model("image-text-to-text", **fields)))
