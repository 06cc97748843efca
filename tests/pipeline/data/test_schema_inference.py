"""Types without rows: the columns after a step without rows are those of the rows that it returns.
For an expression that does not suit the types of the input, the message suggests another one."""

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
from batchinference.pipeline.expression import ColumnExpression, UnsuitableTypes
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import load_step
from batchinference.pipeline.steps.column_checks import type_problems
from batchinference.pipeline.steps.schema_inference import columns_after_all, result_without_rows
from batchinference.pipeline.steps.transform import TransformResult
from batchinference.spec.steps import Step
from plugins.messages import Messages
from support.documents.http_models import chat
from support.inputs.media_files import saved
from support.models import tiny_transformers


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
        "png": [saved(Image.new("RGB", (5, 4)), "PNG")],
        "wav": [wav()],
        "path": ["in/cat/1.png"],
        "ids": pa.ListArray.from_arrays([0, 1], pa.array([bytes(16)], pa.uuid())),
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


TYPES = {"year": pa.string(), "n": pa.int64(), "tags": pa.list_(pa.string())}


def problems(*steps: dict[str, Any]) -> list[str]:
    parsed = [Step.model_validate({"name": f"s{n}", **step}) for n, step in enumerate(steps)]
    return [str(problem) for problem in type_problems(parsed, TYPES)]


@pytest.mark.parametrize(
    "steps",
    [
        [{"filter": "year >= 2025"}],
        [{"addColumns": {"m": "n + 1"}}, {"filter": "m > 2 and year > 1"}],
        [{"renameColumns": {"year": "y"}}, {"filter": "y >= 2025"}],
        [{"dropColumns": ["n"]}, {"selectColumns": ["year"]}, {"addColumns": {"z": "year * 2"}}],
        [{"filter": "n"}],
        [{"explode": {"column": "tags"}}, {"filter": "tags > 2"}],
    ],
)
def test_unsuitable_type_is_named_with_its_fix(steps: list[dict[str, Any]]) -> None:
    (message,) = problems(*steps)
    kind = next(iter(steps[-1]))
    assert message.startswith(f"spec.steps[{len(steps) - 1}].{kind}: step 's{len(steps) - 1}'")
    assert " is string" in message or "gives int64" in message


def test_declared_type_is_a_fix_for_columns_of_the_input(messages: Messages) -> None:
    (of_input,) = problems({"filter": "year >= 2025"})
    (of_step,) = problems({"addColumns": {"y": "year"}}, {"filter": "y >= 2025"})
    messages.check(of_input)
    assert "read.options" not in of_step


@pytest.mark.parametrize(
    ("task", "inputs", "is_wrong"),
    [
        ("image-classification", {"image": "year"}, True),
        ("audio-classification", {"audio": "year"}, True),
        ("video-classification", {"video": "year"}, True),
        ("image-classification", {"image": "unknown"}, False),
        ("image-classification", {"image": "tags"}, False),
        ("text-classification", {"text": "year"}, False),
    ],
)
def test_texts_are_no_pixels_and_no_samples(
    task: str, inputs: dict[str, str], is_wrong: bool
) -> None:
    model = {"runtime": "transformers", "source": "./m", "output": "o", "task": task}
    problem = problems({"model": {**model, "inputs": inputs}})
    assert len(problem) == is_wrong
    assert all("is column 'year', which holds texts. Use a column of" in each for each in problem)


SENTIMENT = {
    "model": {
        **{"runtime": "transformers", "task": "text-classification", "source": "./m"},
        **{"inputs": {"text": "year"}, "output": "o"},
    }
}
TOP = {"model": {**SENTIMENT["model"], "topK": 2}}
_FIELDS = [
    {"name": "label", "type": "string", "enum": ["a"]},
    {"name": "scores", "type": "list<float32>"},
]
JUDGED = {"model": chat(inputs={"text": "year"}, output="o", schema={"fields": _FIELDS})}


@pytest.mark.parametrize(
    ("model", "step", "parts"),
    [
        (SENTIMENT, {"filter": "o.lable == 'x'"}, ["no field 'lable'", "label, score"]),
        (
            SENTIMENT,
            {"filter": "o == 'POSITIVE'"},
            ["o is struct<label", "Write o.label == 'POSITIVE'"],
        ),
        (SENTIMENT, {"addColumns": {"a": "o[0].label"}}, ["is struct<label", "not a list"]),
        (SENTIMENT, {"filter": "o.score > 'a'"}, ["string"]),
        (TOP, {"filter": "o.label == 'x'"}, ["[0].label"]),
        (TOP, {"filter": "o > 1"}, ["o[0]"]),
        (JUDGED, {"filter": "o.lable == 'x'"}, ["no field 'lable'", "label, scores"]),
        (JUDGED, {"filter": "o.scores > 1"}, ["list"]),
        (SENTIMENT, {"explode": {"column": "o"}}, ["explode needs lists"]),
        (SENTIMENT, {"chunk": {"column": "o", "size": 10}}, ["such as {value: o.label}"]),
        (
            SENTIMENT,
            {"model": {**SENTIMENT["model"], "inputs": {"text": "n"}}},
            ["{value: str(n)}"],
        ),
        (
            SENTIMENT,
            {"model": chat(inputs={"o": "o"}, prompt="{o.lable}", output="p")},
            ["did you mean 'label'?"],
        ),
    ],
)
def test_fields_of_results_are_checked(
    model: dict[str, Any], step: dict[str, Any], parts: list[str]
) -> None:
    (message,) = problems(model, step)
    assert message.startswith("spec.steps[1].")
    assert [part for part in parts if part not in message] == []
    assert "read.options" not in message


@pytest.mark.parametrize(
    ("model", "expression"),
    [
        (SENTIMENT, "o.label == 'POSITIVE' and o['score'] > 0.5"),
        (TOP, "o[0].label == 'POSITIVE' and len(o) > 1"),
        (JUDGED, "o.label == 'a' and o.scores[0] > 1"),
    ],
)
def test_fields_of_results_can_be_read(model: dict[str, Any], expression: str) -> None:
    assert problems(model, {"filter": expression}) == []
    assert problems(model, {"python": {"callable": "a:b"}}, {"filter": "o.x > 1"}) == []


@pytest.mark.parametrize(
    "steps",
    [
        [{"filter": "int(year) >= 2025 and len(tags) > 0"}],
        [{"filter": "unknown > 2"}, {"addColumns": {"n": "unknown + 1"}}, {"filter": "n == 'a'"}],
        [{"addColumns": {"year": "int(year)"}}, {"filter": "year >= 2025"}],
        [{"explode": {"column": "tags"}}, {"filter": "tags > 'a'"}],
        [
            {
                "model": {
                    "runtime": "torch",
                    "factory": "a:b",
                    "inputs": {"text": "tags"},
                    "output": "o",
                }
            }
        ],
        [{"chunk": {"column": "unknown", "size": 10}}, {"explode": {"column": "unknown"}}],
    ],
)
def test_suitable_and_unknown_types_are_accepted(steps: list[dict[str, Any]]) -> None:
    assert problems(*steps) == []


LABEL = pa.struct([("label", pa.string()), ("score", pa.float32())])
COLUMNS = pa.schema(
    [
        *(("t", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("flag", pa.bool_())),
        *(("day", pa.date32()), ("o", LABEL), ("top", pa.list_(LABEL)), ("u", pa.uuid())),
        ("e", pa.list_(pa.int32())),
    ]
)
FIXES = {
    "n > '3'": "n > 3",
    "t > 3": "float(t) > 3",
    "3 < t": "3 < float(t)",
    "t in [1, 2]": "float(t) in [1, 2]",
    "n in ['1', '2']": "n in [1, 2]",
    "t == 12345678901234568": "t == '12345678901234568'",
    "flag == 'Y'": "flag",
    "flag == 'off'": "not flag",
    "e.length > 1": "len(e) > 1",
    "t + n == 'x'": "t + str(n) == 'x'",
    "len(n) > 3": "len(str(n)) > 3",
    "contains(n, '1')": "contains(str(n), '1')",
    "abs(t) > 3": "abs(float(t)) > 3",
    "n and x > 1": "n != 0 and x > 1",
    "not t": "t == ''",
    "'x' if n else 'y'": "'x' if n != 0 else 'y'",
    "flag == 'true'": "flag",
    "flag == 0": "not flag",
    "o == 'POSITIVE'": "o.label == 'POSITIVE'",
    "o > 0.5": "o.score > 0.5",
    "top == 'P'": "top[0].label == 'P'",
    "e > 1": "e[0] > 1",
    "o.score > '0.5'": "o.score > 0.5",
    "t.length > 3": "len(t) > 3",
    "n and t": "n != 0 and t != ''",
}
UNKNOWN = [
    "n == 'a'",
    *("n == '007'", "n in ['007']", "t in [12345678901234568]", "t > 12345678901234568"),
    *("flag == 'banana'", "flag == 2", "flag in ['true']"),
    *("contains(e, '1')", "e in ['a']", "o in ['P']", "lower(o) == 'p'", "not o"),
    *("day == 5", "u == 5", "abs(u) > n", "float(u) > 1", "flag + 1 > 1"),
    "t + 1 == 'x'",
    "matches(t, '[')",
    "day.year > 1",
]


def refusal_of(text: str) -> str:
    with pytest.raises(UnsuitableTypes) as caught:
        ColumnExpression("the filter", text).arrow(COLUMNS)
    return caught.value.message


@pytest.mark.parametrize(("text", "written"), FIXES.items())
def test_suitable_expression_is_advised(text: str, written: str) -> None:
    assert refusal_of(text).partition(". Write ")[2] == written
    assert ColumnExpression("the filter", written).arrow(COLUMNS) is not None


@pytest.mark.parametrize("text", UNKNOWN)
def test_no_expression_is_advised_if_none_is_known(text: str) -> None:
    assert ". Write " not in refusal_of(text)
