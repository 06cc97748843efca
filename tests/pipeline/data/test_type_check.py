"""Expressions that do not suit the types of the input are refused before rows are read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from batchinference.pipeline.steps.type_check import type_problems
from batchinference.spec.steps import Step
from plugins.messages import Messages
from support.documents.http_models import chat

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
    found = problems({"model": {**model, "inputs": inputs}})
    assert len(found) == is_wrong
    assert all("is column 'year', which holds texts. Use a column of" in each for each in found)


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
        (SENTIMENT, {"addColumns": {"a": "o[0].label"}}, ["is struct<label", "no list"]),
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
