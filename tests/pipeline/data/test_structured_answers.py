"""Answers with a schema: their values, the rules that they violate, and asking again."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from batchinference.pipeline.errors import JobFailure, describe
from batchinference.pipeline.output.error_groups import cause_of
from batchinference.pipeline.row_warnings import collect_warnings, warn
from batchinference.pipeline.rows_in_flight import Unanswered
from batchinference.pipeline.runtimes.prompts import REPAIR
from batchinference.pipeline.runtimes.structured_answers import (
    AnswerCheck,
    InvalidAnswer,
    StructuredRuntime,
)
from batchinference.spec.models import RUNTIMES, HttpModel
from batchinference.spec.warnings import WarningName
from plugins.messages import Messages
from support.documents.http_models import chat
from support.documents.minimal import Document
from support.documents.vllm_models import vllm
from support.outputs.row_warnings import plain

LABEL = {"name": "label", "type": "string", "enum": ["good", "bad"]}
SCORE = {"name": "score", "type": "float32", "minimum": 0, "maximum": 1}
REVIEW = {"fields": [LABEL, SCORE]}
GOOD = '{"label": "good", "score": 0.5}'
VALUE = {"label": "good", "score": 0.5}


def of(document: Any) -> Document:
    return {"jsonSchema": document}


def field(kind: str) -> Document:
    return {"fields": [{"name": "a", "type": kind, "nullable": True}]}


def check(schema: Document, **fields: Any) -> AnswerCheck:
    model = HttpModel.model_validate(chat(schema=schema, **fields))
    assert model.answer_schema is not None
    return AnswerCheck(model, model.answer_schema)


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        (REVIEW, GOOD, VALUE),
        (REVIEW, f"\n```json\n{GOOD}\n```\n", VALUE),
        (REVIEW, f"```\n{GOOD}```", VALUE),
        (field("int8"), '{"a": -128}', {"a": -128}),
        (field("string"), '{"a": null}', {"a": None}),
        (field("json"), '{"a": {"b": 1.50, "c": [1e400]}}', {"a": '{"b": 1.50, "c": [1e400]}'}),
        (field("decimal<4,2>"), '{"a": 12.30}', {"a": Decimal("12.30")}),
        (field("date"), '{"a": "2026-02-28"}', {"a": dt.date(2026, 2, 28)}),
        (field("list<struct<b: bool>>"), '{"a": [{"b": true}]}', {"a": [{"b": True}]}),
        (of({"type": "integer"}), " 7 ", 7),
        (of({}), '{"b": [1, 2]}', '{"b": [1, 2]}'),
        (of({"type": "number", "multipleOf": 0.1}), "0.3\n", 0.3),
        (of({"type": "object", "properties": {"a": {"type": "string"}}}), "{}", {}),
    ],
)
def test_answer_becomes_a_value_of_its_type(schema: Document, text: str, expected: Any) -> None:
    assert check(schema)(text, "length") == expected


INVALID: list[tuple[str, Document, str]] = [
    ("cut", REVIEW, '{"label": "go'),
    ("prose", REVIEW, f"Sure! {GOOD}"),
    ("text after", REVIEW, f"{GOOD} I hope this helps."),
    ("two", REVIEW, GOOD * 2),
    ("empty", REVIEW, ""),
    ("other fence", REVIEW, f"```python\n{GOOD}\n```"),
    ("duplicate key", REVIEW, '{"label": "good", "label": "bad", "score": 1}'),
    ("NaN", REVIEW, '{"label": "good", "score": NaN}'),
    ("many digits", REVIEW, f'{{"label": "good", "score": {"1" * 5000}}}'),
    ("deep", of({}), "[" * 100_000),
    ("deep but valid", of({"items": {"$ref": "#"}}), "[" * 700 + "]" * 700),
    ("enum", REVIEW, '{"label": "worst", "score": 1}'),
    ("type", REVIEW, '{"label": "good", "score": "1"}'),
    ("null", REVIEW, '{"label": "good", "score": null}'),
    ("true is no number", REVIEW, '{"label": "good", "score": true}'),
    ("minimum", REVIEW, '{"label": "good", "score": -0.001}'),
    ("maximum", REVIEW, '{"label": "good", "score": 1e400}'),
    ("missing", REVIEW, '{"score": 1}'),
    ("more", REVIEW, '{"label": "good", "score": 1, "secret": 2}'),
    ("array", REVIEW, f"[{GOOD}]"),
    ("surrogate", field("string"), '{"a": "\\ud800"}'),
    ("range", field("int8"), '{"a": 128}'),
    ("rounded", field("float32"), '{"a": 16777217}'),
    ("infinite", field("float64"), '{"a": 1e400}'),
    ("exponent", field("float64"), '{"a": 1e9999999999999999999}'),
    ("places", field("decimal<4,2>"), '{"a": 1e-99999999}'),
    ("date", field("date"), '{"a": "2026-02-30"}'),
    ("scale", field("decimal<4,2>"), '{"a": 1.234}'),
    ("nested", field("list<struct<b: int64>>"), '{"a": [{"b": 1}, {"b": 1.5}]}'),
    ("open object", of({"properties": {"a": {"type": "integer"}}, "type": "object"}), '{"b": 1}'),
    ("key of a row", of({"additionalProperties": {"type": "string"}}), '{"secret": 1}'),
    ("alternatives", of({"anyOf": [{"type": "number", "maximum": 1}, {"type": "null"}]}), "2"),
    ("huge", of({"type": "number", "multipleOf": 0.1}), "1e400000"),
]


@pytest.mark.parametrize(("name", "schema", "text"), INVALID, ids=[case[0] for case in INVALID])
def test_violated_rule_is_the_cause_without_values_of_the_row(
    name: str, schema: Document, text: str, messages: Messages
) -> None:
    with pytest.raises(InvalidAnswer) as caught:
        check(schema)(text, "stop")
    messages.check(cause_of(describe(caught.value)))
    assert "secret" not in cause_of(describe(caught.value))
    assert text[:100] in str(caught.value)


def test_cut_answer_names_the_parameter_of_the_runtime(messages: Messages) -> None:
    transformers = {"runtime": "transformers", "task": "text-generation", "source": "org/model"}
    more = {"sampling": {"max_completion_tokens": 5}}
    none, new = {"sampling": {}}, {"sampling": {"max_new_tokens": 5}}
    causal = {**vllm(**none), **transformers}
    for model in (chat(), chat(**more), vllm(), vllm(**none), causal, {**causal, **new}):
        spec = RUNTIMES[model["runtime"]].model_validate({**model, "schema": REVIEW})
        with pytest.raises(InvalidAnswer) as caught:
            AnswerCheck(spec, spec.answer_schema)('{"label', "length")
        messages.check(caught.value.problem)


def test_number_at_the_limit_of_tokens_is_complete_if_no_longer_one_is_valid() -> None:
    unit = {"type": "number", "minimum": 0, "maximum": 1}
    for schema, complete, cut in (
        ({"type": "integer"}, [], ["12", "-1"]),
        ({"type": "integer", "minimum": -20, "maximum": 20}, ["0", "3", "-3"], ["1", "-1", "2"]),
        ({"enum": [1, 2, 12, 20000, 2.5]}, ["12", "2.5", "20000"], ["1", "2", "200"]),
        ({"const": 7}, ["7"], []),
        (unit, [], ["0", "1", "0.73"]),
        ({**unit, "multipleOf": 0.01}, ["0.73", "1.0"], ["0", "0.7"]),
    ):
        assert [str(check(of(schema))(text, "length")) for text in complete] == complete
        for text in cut:
            with pytest.raises(InvalidAnswer, match="cut before"):
                check(of(schema))(text, "length")


class Model:
    """A runtime that gives scripted answers: for each text, one after the other."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers = answers
        self.asked: list[list[tuple[str, Any]]] = []

    def __call__(self, inputs: dict[str, Any]) -> list[Any]:
        texts = inputs["question"]
        self.asked.append([*zip(texts, inputs.get(REPAIR, texts), strict=True)])
        warn(WarningName.TEXT_CUT, row=len(texts) - 1, amount=1)
        warn(WarningName.ANSWER_CUT)
        value = [self.answers[text].pop(0) for text in texts]
        if "refuse" in value:
            raise ValueError("refused")
        if "stop" in value:
            raise JobFailure("down")
        return [
            one if isinstance(one, Exception) else (one, {"finish_reason": "stop"}) for one in value
        ]


def run(model: Model, repair: int, **fields: Any) -> tuple[list[Any], list[Any]]:
    """Return the results for the texts of a model, and the warnings."""
    spec = HttpModel.model_validate(chat(schema=REVIEW, repair=repair, **fields))
    assert spec.answer_schema is not None
    runtime = StructuredRuntime(spec, spec.answer_schema, lambda _: model)
    with collect_warnings() as warnings:
        result = runtime({"question": [*model.answers]})
    return result, plain(warnings)


def test_only_invalid_answers_are_asked_for_again() -> None:
    model = Model(a=[GOOD], b=["no", GOOD], c=["no", "nor", GOOD], d=[OSError(), GOOD])
    result, warnings = run(model, repair=3)
    assert [*result[:3], str(result[3])] == [VALUE] * 3 + [""]
    assert [[text for text, _ in asked] for asked in model.asked] == [[*"abcd"], [*"bc"], [*"c"]]
    (_, (answer, request)) = model.asked[2][0]
    assert (answer["role"], answer["content"], request["role"]) == ("assistant", "nor", "user")
    repaired = [(row, "AnswerRepaired", 1) for row in (1, 2, 2)]
    cut = [(row, "TextCut", 1) for row in (2, 2, 3)]
    assert warnings == sorted([*repaired, *cut])


def test_row_keeps_its_last_invalid_answer() -> None:
    result, _ = run(Model(a=["no"], b=["no", "nor"], c=["no", OSError()]), repair=0)
    assert [error.text for error in result] == ["no"] * 3
    result, _ = run(Model(a=["no", "nor"], b=["no", OSError()], c=["no", "refuse"]), repair=1)
    assert [error.text for error in result] == ["no"] * 3


def test_rows_are_asked_alone_if_asking_together_fails() -> None:
    model = Model(a=["no", GOOD, GOOD, GOOD], b=["no", *["refuse"] * 3], c=["no", *[GOOD] * 3])
    result, _ = run(model, repair=1)
    assert [result[0], type(result[1]), type(result[2])] == [VALUE, InvalidAnswer, dict]


def test_row_is_unanswered_if_the_process_stops_before_it_is_asked_again() -> None:
    result, _ = run(Model(a=["no", Unanswered()], b=[Unanswered()], c=[GOOD]), repair=2)
    assert [*map(type, result[:2]), result[2]] == [Unanswered, Unanswered, VALUE]


def test_failure_of_the_job_ends_the_repair() -> None:
    with pytest.raises(JobFailure):
        run(Model(a=["no", "stop"]), repair=1)


def test_details_are_those_of_the_last_answer() -> None:
    (result,), _ = run(Model(a=["no", GOOD]), repair=1, details="about")
    assert result == (VALUE, {"finish_reason": "stop"})
