"""The model of a step: what each runtime asks for."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from support.documents.minimal import Document, document, model_step
from support.documents.refusals import refused, short
from support.documents.variations import REMOVED

TRANSFORMERS = {
    "runtime": "transformers",
    "task": "feature-extraction",
    "source": "org/model",
    "inputs": {"text": "text"},
    "output": "embedding",
}
TORCH = {"runtime": "torch", "source": "model.pt", "inputs": {"x": "x"}, "output": "y"}
MODEL = "spec.steps[0].model"


def running(model: Document, /, **fields: Any) -> Document:
    """A document with one step that runs the model; `fields` replace the model's."""
    merged = {**model, **fields}
    kept = {name: value for name, value in merged.items() if value is not REMOVED}
    return document(steps=[model_step(model=kept)])


def test_a_torch_module_comes_from_a_factory_or_a_file_or_both() -> None:
    factory = {"factory": "own.models:build", "factoryArgs": {"width": 4}}
    assert parse(running(TORCH))
    assert parse(running(TORCH, source=REMOVED, **factory))
    assert parse(running(TORCH, **factory))
    assert refused(running(TORCH, source=REMOVED)) == (
        f"{MODEL}: give a 'factory' or a 'source' (or both)"
    )


def test_arguments_of_a_factory_need_one() -> None:
    message = f"{MODEL}: 'factoryArgs' needs a 'factory'"
    assert refused(running(TORCH, factoryArgs={"width": 4})) == message
    assert parse(running(TORCH, factoryArgs={}))


def test_a_torch_module_takes_any_inputs() -> None:
    inputs = {f"input{number}": f"column{number}" for number in range(32)}
    assert parse(running(TORCH, inputs=inputs))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"runtime": REMOVED}, ".runtime: required, but missing"),
        (
            {"runtime": "pytorch"},
            ".runtime: 'pytorch' is not one of transformers, torch, ",
        ),
        ({"runtime": "caffe"}, ".runtime: 'caffe' is not one of transformers, torch, "),
        ({"task": REMOVED}, ".task: required, but missing"),
        (
            {"task": "embedding"},
            ".task: 'embedding' is not one of feature-extraction, text-classification, "
            "image-classification, image-feature-extraction",
        ),
        ({"source": REMOVED}, ".source: required, but missing"),
        ({"source": ""}, ".source: String should have at least 1 character, got ''"),
        ({"source": None}, ".source: Input should be a valid string, got null"),
        ({"inputs": REMOVED}, ".inputs: required, but missing"),
        (
            {"inputs": {}},
            ".inputs: Dictionary should have at least 1 item after validation, not 0",
        ),
        ({"inputs": ["text"]}, ".inputs: expected a mapping, got a list"),
        ({"inputs": {"text": 7}}, ".inputs.text: Input should be a valid string, got 7"),
        ({"inputs": {"text": ""}}, ".inputs.text: String should have at least 1 character, got ''"),
        (
            {"inputs": {True: "text"}},
            ".inputs.True: as a key: Input should be a valid string, got true",
        ),
        (
            {"inputs": {"": "text"}},
            ".inputs.: as a key: String should have at least 1 character, got ''",
        ),
        ({"output": REMOVED}, ".output: required, but missing"),
        ({"output": ""}, ".output: String should have at least 1 character, got ''"),
        ({"pooling": "max"}, ".pooling: 'max' is not one of mean, cls"),
        ({"normalize": "yes"}, ".normalize: Input should be a valid boolean, got 'yes'"),
        ({"options": []}, ".options: expected a mapping, got a list"),
        ({"batchSize": 8}, ".batchSize: unknown field; there are runtime, task, source, revision"),
        ({"factory": "a:b"}, ".factory: unknown field; there are runtime, task, source, revision"),
        ({"model": "a"}, ".model: unknown field; there are runtime, task, source, revision"),
    ],
    ids=short,
)
def test_a_transformers_model_that_is_refused(fields: Document, message: str) -> None:
    assert refused(running(TRANSFORMERS, **fields)).startswith(MODEL + message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "feature-extraction"}, ".task: unknown field; there are runtime, factory"),
        ({"factory": "models.build"}, ".factory: expected a callable written as module:name, got"),
        ({"source": 7}, ".source: Input should be a valid string, got 7"),
        ({"inputs": {"x": None}}, ".inputs.x: Input should be a valid string, got null"),
        (
            {"inputs": {f"input{number}": "x" for number in range(33)}},
            ".inputs: Dictionary should have at most 32 items after validation, not more",
        ),
    ],
    ids=short,
)
def test_a_torch_model_that_is_refused(fields: Document, message: str) -> None:
    assert refused(running(TORCH, **fields)).startswith(MODEL + message)


@pytest.mark.parametrize(("model", "got"), [(None, None), (["x"], "a list"), ("x", "'x'")])
def test_a_model_is_a_mapping(model: Any, got: str | None) -> None:
    message = refused(document(steps=[model_step(model=model)]))
    if got is None:
        assert message.endswith("this one holds none of them")
    else:
        assert message == f"{MODEL}: expected a mapping, got {got}"
