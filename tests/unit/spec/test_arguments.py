"""Keyword arguments: what JSON can hold, for a cluster must get what a laptop gets."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from batchinference.spec import parse
from support.documents.minimal import document, model_step
from support.documents.refusals import calling, refused, short

PLACE = "spec.steps[0].python.constructorArgs"
LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -7,
        10**30,
        0.5,
        "",
        "text",
        [],
        {},
        [1, "a", None, [2.5]],
        {"deep": {"deeper": [{"": 1}]}},
        {"id2label": {"0": "cat", "1": "dog"}},
    ],
    ids=short,
)
def test_json_values_are_kept(value: Any) -> None:
    step = parse(calling(constructorArgs={"argument": value})).spec.steps[0]
    assert step.python
    assert step.python.constructor_args == {"argument": value}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (dt.date(2026, 1, 2), "JSON has no such value: put a date in quotes"),
        ([dt.datetime(2026, 1, 2, tzinfo=dt.UTC)], "JSON has no such value: put a date in quotes"),
        (b"bytes", "JSON has no such value"),
        ({"a"}, "JSON has no such value"),
        (("a",), "JSON has no such value"),
        (float("nan"), "JSON has no such number"),
        ({"threshold": float("-inf")}, "JSON has no such number"),
        ({0: "cat"}, "a key must be a text: put it in quotes"),
        ([{True: "yes"}], "a key must be a text: put it in quotes"),
        (LOOP, "nested more than 32 levels deep"),
    ],
    ids=["date", "time", "bytes", "set", "tuple", "nan", "inf", "number", "boolean", "loop"],
)
def test_values_outside_json_are_refused(value: Any, message: str) -> None:
    found = refused(calling(constructorArgs={"argument": value}))
    assert found.startswith(f"{PLACE}.argument: {message}")


def test_depth_of_arguments_is_limited() -> None:
    value: Any = 1
    for _ in range(32):
        value = [value]
    assert parse(calling(constructorArgs={"argument": value}))
    message = f"{PLACE}.argument: nested more than 32 levels deep"
    assert refused(calling(constructorArgs={"argument": [value]})) == message


def test_at_most_64_arguments() -> None:
    arguments = {f"argument{number}": number for number in range(65)}
    assert refused(calling(callArgs=arguments)) == (
        "spec.steps[0].python.callArgs: "
        "Dictionary should have at most 64 items after validation, not more"
    )


@pytest.mark.parametrize("value", [None, [], "a=1", 7])
def test_arguments_are_a_mapping(value: Any) -> None:
    assert refused(calling(callArgs=value)).startswith(
        "spec.steps[0].python.callArgs: expected a mapping, got "
    )


def test_argument_names_are_strings() -> None:
    assert refused(calling(constructorArgs={1: "a"})) == (
        f"{PLACE}.1: as a key: Input should be a valid string, got a number (not shown)"
    )


@pytest.mark.parametrize(
    ("model", "field"),
    [
        (model_step()["model"], "options"),
        (
            {"runtime": "torch", "factory": "m:f", "inputs": {"x": "x"}, "output": "y"},
            "factoryArgs",
        ),
    ],
    ids=["options", "factoryArgs"],
)
def test_rules_apply_to_arguments_of_models(model: dict[str, Any], field: str) -> None:
    assert parse(document(steps=[model_step(model={**model, field: {"a": [1]}})]))
    wrong = {**model, field: {"a": dt.date(2026, 1, 2)}}
    found = refused(document(steps=[model_step(model=wrong)]))
    assert found.startswith(f"spec.steps[0].model.{field}.a: JSON has no such value")
