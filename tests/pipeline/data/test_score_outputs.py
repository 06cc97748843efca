"""Classifiers with `scoreOutput` write the label and its score as plain columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torchvision import models

from batchinference.pipeline.arrow import to_column
from batchinference.pipeline.declared_types import arrow_type
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import as_result
from batchinference.pipeline.steps.model import ModelTransform
from support.models.replicas import model_of
from support.models.run_transformers import photographs

PLAIN = pa.schema([("out", pa.string()), ("score", pa.float32())])


def results(values: list[Any], runtime: str, name: str, **fields: Any) -> pa.Table:
    """Return the output of a model for a column of values, without its input."""
    model = model_of(runtime, (name,), **fields)
    table = pa.table({name: to_column(values)})
    made = as_result(ModelTransform("step", model, Device())(table)).table.drop_columns([name])
    assert made.schema.field("out").type == arrow_type(model.output_type or "")
    return made


@pytest.fixture
def squeezenet(tmp_path: Path) -> str:
    torch.manual_seed(0)
    path = tmp_path / "model.pt"
    torch.save(models.get_model("squeezenet1_1", weights=None, num_classes=3).state_dict(), path)
    return str(path)


@pytest.fixture(params=["classifier", "zero-shot", "torchvision"])
def case(
    request: pytest.FixtureRequest, tiny: Callable[[str], str], squeezenet: str
) -> tuple[list[Any], dict[str, Any]]:
    """Return values, and the fields of a model that reads them."""
    texts = ["one", None, "three"]
    cases: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "classifier": (texts, {"task": "text-classification", "source": "sentiment_model"}),
        "zero-shot": (
            texts,
            {
                **{"task": "zero-shot-classification", "source": "entailment_model"},
                "candidateLabels": ["left", "right"],
            },
        ),
        "torchvision": (
            photographs((64, 64), (64, 64), (64, 64)),
            {"arch": "squeezenet1_1", "source": squeezenet, "labels": ["a", "b", "c"]},
        ),
    }
    values, fields = cases[request.param]
    if "task" not in fields:
        return values, {"runtime": "torchvision", "name": "image", **fields}
    fields["source"] = tiny(fields["source"])
    return values, {"runtime": "transformers", "name": "text", **fields}


def test_label_and_score_are_those_of_the_struct(case: tuple[list[Any], dict[str, Any]]) -> None:
    values, fields = case
    plain = results(values, scoreOutput="score", **fields)
    struct = results(values, **fields)["out"].to_pylist()
    assert plain.schema == PLAIN
    assert plain.to_pylist() == [
        {"out": one and one["label"], "score": one and one["score"]} for one in struct
    ]
