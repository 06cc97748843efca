"""The model of a step: the fields of each runtime.

Tasks of transformers are tested in test_transformers_models.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from support.documents.minimal import Document, document, model_step
from support.documents.refusals import refused, running, short
from support.documents.runtimes import full_model
from support.documents.variations import REMOVED

TRANSFORMERS = {
    "runtime": "transformers",
    "task": "feature-extraction",
    "source": "org/model",
    "inputs": {"text": "text"},
    "output": "embedding",
}
TORCH = {
    "runtime": "torch",
    "source": "model.pt",
    "trustSource": True,
    "inputs": {"x": "x"},
    "output": "y",
}
MODEL = "spec.steps[0].model"


def changed(model: Document | str, /, **fields: Any) -> Document:
    """Return a document that runs a model with some fields changed.

    `model` is a model, or the name of a model with all fields.
    """
    merged = {**(full_model(model) if isinstance(model, str) else model), **fields}
    return running({field: value for field, value in merged.items() if value is not REMOVED})


FACTORY = {
    "factory": "own.models:build",
    "factoryArgs": {"width": 4},
    "trustSource": REMOVED,
}
NO_FACTORY = {"factory": REMOVED, "factoryArgs": REMOVED}


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (TORCH, {}),
        (TORCH, FACTORY),
        (TORCH, {"source": REMOVED, **FACTORY}),
        (TORCH, {"inputs": {f"input{number}": f"column{number}" for number in range(32)}}),
        ("torch", {"factory": REMOVED, "source": "model.pt", "trustSource": True}),
        ("torch", {"factory": REMOVED, "source": "x.pt2", "trustSource": True, "dtype": REMOVED}),
        ("torchvision", {"source": REMOVED, "labels": REMOVED, "weights": REMOVED}),
        ("onnx", {"source": "s3://m/net/", "outputName": REMOVED}),
        ("sentenceTransformers", {"inputs": {"image": "photo"}, "promptName": REMOVED}),
    ],
    ids=short,
)
def test_model_without_optional_fields_is_accepted(model: Document | str, fields: Document) -> None:
    assert parse(changed(model, **fields))


def test_model_requires_a_factory_or_a_source() -> None:
    without = changed("torch", **NO_FACTORY, source=REMOVED)
    assert refused(without) == f"{MODEL}: give a 'factory' or a 'source' (or both)"
    for given in ({"units": 2}, {}):
        without = changed("torch", factory=REMOVED, factoryArgs=given, source="model.pt")
        assert refused(without) == f"{MODEL}: 'factoryArgs' needs a 'factory'"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"runtime": REMOVED}, ".runtime: required, but missing"),
        ({"runtime": "pytorch"}, ".runtime: 'pytorch' is not one of transformers, torch, "),
        ({"source": ""}, ".source: expected at least 1 character, got ''"),
        ({"source": None}, ".source: expected a text, got null"),
        ({"inputs": {}}, ".inputs: expected at least 1 item, got 0"),
        ({"inputs": ["text"]}, ".inputs: expected a mapping, got a list"),
        ({"batchSize": 8},
         ".batchSize: unknown field; it is a field of spec.steps[0]. Move it there"),
        ({"size": 8}, ".size: unknown field. Use one of runtime, task, source, revision"),
    ],
    ids=short,
)  # fmt: skip
def test_transformers_model_is_refused(fields: Document, message: str) -> None:
    assert refused(changed(TRANSFORMERS, **fields)).startswith(MODEL + message)


@pytest.mark.parametrize(
    ("model", "fields", "message"),
    [
        (TORCH, {"task": "fill-mask"},
         ".task: unknown field; it is a field of runtime transformers and vllm, not of torch. Rem"),
        (TORCH, {"factory": "models.build"},
         ".factory: expected a callable written as module:name, got"),
        (TORCH, {"source": 7}, ".source: expected a text, got 7"),
        (TORCH, {"inputs": {f"input{number}": "x" for number in range(33)}},
         ".inputs: expected at most 32 items, got 33"),
        ("torch", {"dtype": "float8"}, ".dtype: 'float8' is not one of float32, float16, bfloat16"),
        (TORCH, {"trustSource": REMOVED},
         ": trustSource: the program 'model.pt' can run code of its author when it is loaded. Set"),
        (TORCH, {"factory": "own:build"}, ": trustSource: a state dict runs no code. Leave it out"),
        ("torch", {"factory": REMOVED, "source": "model.pt2", "trustSource": True},
         ": an exported program keeps its own types: leave out 'dtype'"),
        ("torchvision", {"arch": REMOVED}, ".arch: required, but missing"),
        ("torchvision", {"arch": "ResNet152"}, ".arch: "),
        ("torchvision", {"weights": "default"}, ".weights: "),
        ("torchvision", {"inputs": {"pixels": "image"}},
         ": torchvision takes exactly one input: inputs: {image: COLUMN}"),
        ("torchvision", {"topK": 0}, ".topK: expected at least 1, got 0"),
        ("torchvision", {"source": REMOVED}, ": 'labels' needs a 'source': the weights have their"),
        ("torchvision features", {"topK": 5}, ": 'topK' is for classes, not for 'features'"),
        ("torchvision features", {"labels": ["cat"], "source": "own.pt"},
         ": 'labels' is for classes, not for 'features'"),
        ("onnx", {"outputName": ""}, ".outputName: expected at least 1 character"),
        ("sentenceTransformers", {"inputs": {"text": "a", "image": "b"}},
         ": sentenceTransformers takes exactly one input: inputs: {text: COLUMN} or {image: COL"),
        ("sentenceTransformers", {"prompt": "search: "},
         ": give 'prompt' or 'promptName', not both"),
        ("sentenceTransformers", {"inputs": {"image": "photo"}},
         ": a prompt is for texts, not for images"),
        ("sentenceTransformers", {"source": "s3://models/minilm"},
         ": 'revision' is for models of the Hub, and 's3://models/minilm' is none"),
    ],
    ids=short,
)  # fmt: skip
def test_model_is_refused(model: Document | str, fields: Document, message: str) -> None:
    assert refused(changed(model, **fields)).startswith(MODEL + message)


@pytest.mark.parametrize(("model", "got"), [(None, None), (["x"], "a list"), ("x", "'x'")])
def test_model_must_be_a_mapping(model: Any, got: str | None) -> None:
    message = refused(document(steps=[model_step(model=model)]))
    if got is None:
        assert "has no action. Add one of model" in message
    else:
        assert message == f"{MODEL}: expected a mapping, got {got}"
