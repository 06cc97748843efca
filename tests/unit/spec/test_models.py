"""The model of a step: the fields of each runtime. Tasks of transformers are tested in
test_transformers_models.py."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from support.documents.minimal import Document
from support.documents.refusals import running, short
from support.documents.runtimes import full_model
from support.documents.variations import REMOVED

TORCH = {
    "runtime": "torch",
    "source": "model.pt",
    "trustSource": True,
    "inputs": {"x": "x"},
    "output": "y",
}
MODEL = "spec.steps[0].model"


def changed(model: Document | str, /, **fields: Any) -> Document:
    """Return a document that runs a model with some fields changed. `model` is a model, or the name
    of a model with all fields."""
    merged = {**(full_model(model) if isinstance(model, str) else model), **fields}
    return running({field: value for field, value in merged.items() if value is not REMOVED})


FACTORY = {"factory": "own.models:build", "factoryArgs": {"width": 4}, "trustSource": REMOVED}


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
