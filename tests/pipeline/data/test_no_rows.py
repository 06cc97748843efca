"""Columns after a step without rows: their types are those of the rows that the step returns."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import soundfile
from PIL import Image

from batchinference.pipeline.arrow import tensors_to_lists, to_column
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import TransformResult, load_step
from batchinference.pipeline.steps.no_rows import columns_after_all, result_without_rows
from batchinference.spec.steps import Step
from support.models import tiny_transformers


def png(mode: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((4, 5, 3), np.uint8)).convert(mode).save(buffer, "png")
    return buffer.getvalue()


def wav() -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros((10, 2), np.float32), 8000, format="WAV")
    return buffer.getvalue()


ROWS = pa.table(
    {
        "n": pa.array([1], pa.int16()),
        "text": ["a b"],
        "list": [[1.5, None]],
        "tensor": to_column(np.zeros((1, 2, 3), np.float32)),
        "json": ['{"x": 1, "y": [2]}'],
        "png": [png("RGB")],
        "wav": [wav()],
        "path": ["in/cat/1.png"],
    }
)
STEPS: list[dict[str, Any]] = [
    {"filter": "n > 0"},
    {"addColumns": {"half": "n / 2", "text": "n", "same": "text", "large": "n > 3"}},
    {"selectColumns": ["text", "n"]},
    {"dropColumns": ["tensor", "n"]},
    {"renameColumns": {"n": "text", "text": "n"}},
    {"explode": {"column": "list"}},
    {"labelFromPath": {"column": "label", "index": -2}},
    {"chunk": {"column": "text", "size": 2}},
    {"decode": {"column": "json", "format": "json", "fields": {"x": "int8", "y": "list<json>"}}},
    {"decode": {"column": "png", "format": "image"}},
    {"decode": {"column": "png", "format": "image", "mode": "L", "size": [2, 2]}},
    {"decode": {"column": "png", "format": "image", "mode": "I;16"}},
    {"decode": {"column": "wav", "format": "audio"}},
    {"decode": {"column": "wav", "format": "audio", "mono": True}},
    {"decode": {"column": "png", "format": "text", "encoding": "latin-1"}},
]


@pytest.mark.parametrize("fields", STEPS, ids=str)
def test_types_are_those_of_rows(fields: dict[str, Any]) -> None:
    step = Step.model_validate({"name": "step", **fields})
    loaded = load_step(step, Device())
    result = loaded(ROWS)
    rows = result.table if isinstance(result, TransformResult) else result
    assert rows.num_rows
    empty = result_without_rows(step, ROWS, loaded)
    assert empty.num_rows == 0
    assert tensors_to_lists(empty).schema == tensors_to_lists(rows).schema


@pytest.mark.parametrize(
    "fields",
    [
        {"task": "feature-extraction"},
        {"task": "text-classification"},
        {"task": "text-classification", "topK": 2},
    ],
    ids=str,
)
def test_types_of_models_are_those_of_rows(fields: dict[str, Any], bert: str) -> None:
    assert_type_of_rows({"runtime": "transformers", "source": bert, **fields})


@pytest.mark.parametrize("several", [1, 2])
def test_type_of_generated_texts_is_that_of_rows(tmp_path: Path, several: int) -> None:
    sampling = {"max_new_tokens": 2, "num_return_sequences": several, "do_sample": True}
    source = tiny_transformers.write("text_model", tmp_path)
    model = {"runtime": "transformers", "source": source, "task": "text-generation"}
    assert_type_of_rows({**model, "sampling": sampling})


def assert_type_of_rows(model: dict[str, Any]) -> None:
    fields = {**model, "inputs": {"text": "text"}, "output": "out"}
    step = Step.model_validate({"name": "step", "model": fields})
    rows = load_step(step, Device())(ROWS.select(["text"]))
    assert isinstance(rows, pa.Table)
    assert result_without_rows(step, ROWS.select(["text"])).schema == tensors_to_lists(rows).schema


def test_names_are_known_without_types() -> None:
    steps = [
        {"addColumns": {"sum": "n + missing"}},
        {"renameColumns": {"n": "m"}},
        {"decode": {"column": "png", "format": "text"}},
    ]
    parsed = [Step.model_validate({"name": f"s{n}", **step}) for n, step in enumerate(steps)]
    before = pa.schema([("n", pa.int16()), ("png", pa.null())])
    after = pa.schema([("m", pa.int16()), ("png", pa.string()), ("sum", pa.null())])
    assert columns_after_all(parsed, before) == after


def test_columns_after_user_code_are_unknown_until_they_are_selected() -> None:
    python = Step.model_validate({"name": "own", "python": {"callable": "own:code"}})
    select = Step.model_validate({"name": "few", "selectColumns": ["a", "b"]})
    assert columns_after_all([python], ROWS.schema).names == []
    expected = pa.schema([("a", pa.null()), ("b", pa.null())])
    assert columns_after_all([python, select], ROWS.schema) == expected
    guessed = columns_after_all([python, select], ROWS.schema, code_keeps_columns=True)
    assert guessed == expected
    assert columns_after_all([python], ROWS.schema, code_keeps_columns=True) == ROWS.schema


def test_step_that_cannot_run_without_rows_adds_columns_of_unknown_type() -> None:
    def failing(batch: pa.Table) -> pa.Table:
        raise RuntimeError("no rows")

    step = Step.model_validate({"name": "step", "addColumns": {"new": "n"}})
    after = result_without_rows(step, ROWS.select(["n"]), failing)
    assert after.schema == pa.schema([("n", pa.int16()), ("new", pa.null())])
