"""Models of torch, torchvision, keras, onnx and sentence-transformers: what each asks for."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from support.documents.minimal import Document
from support.documents.refusals import refused, running, short
from support.documents.runtimes import FULL_MODELS, full_model
from support.documents.variations import REMOVED

MODEL = "spec.steps[0].model"


def changed(name: str, **fields: Any) -> Document:
    """A document that runs the full model of this name; `fields` replace the model's."""
    merged = {**full_model(name), **fields}
    return running({field: value for field, value in merged.items() if value is not REMOVED})


@pytest.mark.parametrize("name", FULL_MODELS)
def test_valid_model_is_accepted(name: str) -> None:
    assert parse(running(full_model(name)))


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("torch", {"factory": REMOVED, "source": "model.pt"}),
        ("torch", {"factory": REMOVED, "source": "model.pt2", "dtype": REMOVED}),
        ("torchvision", {"source": REMOVED, "labels": REMOVED, "weights": REMOVED}),
        ("keras", {"source": REMOVED}),
        ("keras", {"factory": REMOVED, "factoryArgs": REMOVED, "source": "s3://m/net.keras"}),
        ("onnx", {"source": "s3://m/net/", "outputName": REMOVED}),
        ("sentenceTransformers", {"inputs": {"image": "photo"}, "promptName": REMOVED}),
    ],
    ids=["TorchScript", "exported program", "weights of torchvision", "factory", "saved model",
         "folder", "images"],
)  # fmt: skip
def test_equivalent_models_are_equal(name: str, fields: Document) -> None:
    assert parse(changed(name, **fields))


@pytest.mark.parametrize("name", ["torch", "keras"])
def test_a_model_comes_from_a_factory_or_a_source(name: str) -> None:
    nothing = {"factory": REMOVED, "factoryArgs": REMOVED, "source": REMOVED}
    assert refused(changed(name, **nothing)) == f"{MODEL}: give a 'factory' or a 'source' (or both)"
    without = changed(name, factory=REMOVED, factoryArgs={"units": 2}, source="model.keras")
    assert refused(without) == f"{MODEL}: 'factoryArgs' needs a 'factory'"


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("torch", {"dtype": "float8"}, ".dtype: 'float8' is not one of float32, float16, bfloat16"),
        (
            "torch",
            {"factory": REMOVED, "source": "model.pt2"},
            ": an exported program keeps its own types: leave out 'dtype'",
        ),
        ("torchvision", {"arch": REMOVED}, ".arch: required, but missing"),
        ("torchvision", {"arch": "ResNet152"}, ".arch: "),
        ("torchvision", {"weights": "default"}, ".weights: "),
        (
            "torchvision",
            {"inputs": {"pixels": "image"}},
            ": torchvision takes exactly one input: inputs: {image: COLUMN}",
        ),
        ("torchvision", {"topK": 0}, ".topK: Input should be greater than or equal to 1, got 0"),
        ("torchvision", {"source": REMOVED}, ": 'labels' needs a 'source': the weights have their"),
        ("torchvision features", {"topK": 5}, ": 'topK' is for classes, not for 'features'"),
        (
            "torchvision features",
            {"labels": ["cat"], "source": "own.pt"},
            ": 'labels' is for classes, not for 'features'",
        ),
        ("torchvision", {"factory": "own:build"}, ".factory: unknown field; there are runtime"),
        ("keras", {"backend": "theano"}, ".backend: 'theano' is not one of torch, tensorflow, jax"),
        ("keras", {"source": "model.h5"}, ": source: the weights for a factory end with '.weights"),
        (
            "keras",
            {"factory": REMOVED, "factoryArgs": REMOVED, "source": "model"},
            ": source: a saved model must end with '.keras'",
        ),
        ("onnx", {"source": REMOVED}, ".source: required, but missing"),
        ("onnx", {"factory": "own:build"}, ".factory: unknown field; there are runtime, source"),
        ("onnx", {"outputName": ""}, ".outputName: String should have at least 1 character"),
        (
            "sentenceTransformers",
            {"inputs": {"text": "a", "image": "b"}},
            ": sentenceTransformers takes exactly one input: inputs: {text: COLUMN} or {image: COL",
        ),
        (
            "sentenceTransformers",
            {"prompt": "search: "},
            ": give 'prompt' or 'promptName', not both",
        ),
        (
            "sentenceTransformers",
            {"inputs": {"image": "photo"}},
            ": a prompt is for texts, not for images",
        ),
        (
            "sentenceTransformers",
            {"source": "s3://models/minilm"},
            ": 'revision' is for models of the Hub, and 's3://models/minilm' is none",
        ),
        ("sentenceTransformers", {"truncateDim": 0}, ".truncateDim: Input should be greater than"),
        ("sentenceTransformers", {"task": "x"}, ".task: unknown field; there are runtime, source"),
    ],
    ids=short,
)
def test_invalid_model_is_refused(name: str, fields: Document, message: str) -> None:
    assert refused(changed(name, **fields)).startswith(MODEL + message)
